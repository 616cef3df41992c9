"""`opened`: decomposes the operators of a graph that have no converter into ones that do.

It uses PyTorch's own decompositions, and those of `onnx_decompositions`. Complex numbers are pairs
of real ones before (`onnx_complex`).
"""

import functools
import operator
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.convert.onnx_complex import graph_of, without_complex
from calque.convert.onnx_decompositions import WRITTEN_HERE
from calque.convert.onnx_matrices import CHECKS_OF_MATRICES
from calque.tracing.graph.purity import TracedGraph, has_effect
from calque.tracing.graph.templates import rebuilt
from calque.tracing.graph.value_guards import expect_answer
from calque.upstream.torch_internals import (
    OpOverload,
    decomposition_table,
    pytree,
)


def opened(graph: GraphModule, converted: Collection[str]) -> GraphModule:
    """Returns a copy of the graph in which operators are decomposed as needed.

    Args:
        graph: a graph of ATen operators, with `val` in their `meta`.
        converted: the names of operators to keep. An operator that cannot be decomposed into these
            is kept too, unless it does not depend on inputs, in which case it is computed.

    Raises:
        ConversionError: an operator computes with complex numbers in a way that has no form here.
    """
    table = {
        target: function
        for target, function in {**decomposition_table, **WRITTEN_HERE}.items()
        if isinstance(target, OpOverload) and str(target) not in converted
    }
    made = GraphModule(graph, _copied(graph.graph))
    without_complex(made, functools.partial(_computed, torch.fx.Interpreter(made)))
    for node in list(made.graph.nodes):
        if node.target in table:
            inner = _consists_of(node, table)
            if inner is not None and _is_converted(inner, converted) and _gives(inner, node):
                _replace(made, node, inner)
    _compute_constants(made, converted)
    _flatten_objects(made.graph)
    _settle_constant_guards(made)
    _remove_unused(made.graph)
    return made


def _flatten_objects(graph: torch.fx.Graph) -> None:
    """Replace an object in the result with the tuple of its tensors."""

    def parts_of(node: Node) -> Any:
        return tuple(node.args[1:]) if node.target is rebuilt else node

    output = graph.output_node()
    output.args = torch.fx.map_arg(output.args, parts_of)


def _settle_constant_guards(graph: GraphModule) -> None:
    """Perform and remove checks that do not depend on inputs.

    Raises:
        TraceError: a value differs from the recorded one.
    """
    run = torch.fx.Interpreter(graph)
    for guard in graph.graph.find_nodes(op="call_function", target=expect_answer):
        needed = _needed_by(guard)
        if all(map(_is_constant, needed)):
            for node in (*needed, guard):
                if node not in run.env:
                    run.env[node] = run.run_node(node)
            graph.graph.erase_node(guard)


def _compute_constants(graph: GraphModule, converted: Collection[str]) -> None:
    """Replace unconverted operators that do not depend on inputs with their results."""
    run = torch.fx.Interpreter(graph)
    for node in list(graph.graph.nodes):
        if isinstance(node.target, OpOverload) and str(node.target) not in converted:
            found = _computed(run, node)
            if found is not None:
                _give(graph, node, found)


def _computed(run: torch.fx.Interpreter, node: Node) -> Any:
    """Returns the value of a node that does not depend on inputs; None if it does."""
    needed = [*_needed_by(node), node]
    if not all(map(_is_constant, needed)):
        return None
    with torch.no_grad():
        for each in needed:
            if each not in run.env:
                run.env[each] = run.run_node(each)
    return run.env[node]


def _give(graph: GraphModule, node: Node, found: object) -> None:
    """Replace a node with one or more constants."""
    if isinstance(found, Tensor):
        with graph.graph.inserting_before(node):
            node.replace_all_uses_with(_constant(graph, found.detach().clone(), node))
    elif isinstance(found, (tuple, list)):
        for use in [user for user in node.users if user.target is operator.getitem]:
            place: Any = use.args[1]
            _give(graph, use, found[place])
            graph.graph.erase_node(use)


def _needed_by(node: Node) -> list[Node]:
    """Returns the nodes from which the node is computed, in the order of the graph."""
    found: set[Node] = set()
    waiting = list(node.all_input_nodes)
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += one.all_input_nodes
    return [each for each in node.graph.nodes if each in found]


def _is_constant(node: Node) -> bool:
    draws = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    return node.op != "placeholder" and not draws and not has_effect(node)


def _remove_unused(graph: torch.fx.Graph) -> None:
    for node in reversed(graph.nodes):
        unused = not node.users and node.op in ("call_function", "call_method", "get_attr")
        if unused and not has_effect(node):
            graph.erase_node(node)


def _copied(graph: torch.fx.Graph) -> torch.fx.Graph:
    copied = TracedGraph()  # whose code has the names of a model as data
    known: dict[Node, Node] = {}
    result = copied.graph_copy(graph, known)
    old = graph.output_node()
    known[old] = copied.output(result)
    known[old].meta = dict(old.meta)
    return copied


def _consists_of(node: Node, table: dict[Any, Callable[..., Any]]) -> GraphModule | None:
    """Returns the operator's decomposition, with its tensors as inputs; None if there is none."""
    leaves, form = pytree.tree_flatten((node.args, node.kwargs))
    vals = [leaf.meta.get("val") if isinstance(leaf, Node) else leaf for leaf in leaves]
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Node)]
    if not all(isinstance(vals[i], Tensor) for i in places):
        return None

    def call(*tensors: Any) -> Any:
        given = list(vals)
        for i, tensor in zip(places, tensors, strict=True):
            given[i] = tensor
        args, kwargs = pytree.tree_unflatten(given, form)
        return _like(node.meta.get("val"), table[node.target](*args, **kwargs))

    with torch.no_grad():
        try:
            return graph_of(call, [vals[i] for i in places], table)
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            return None  # the operator is then reported as not convertible


def _like(result: object, found: Any) -> Any:
    """Returns what a decomposition has given, with the dtype of the operator's result."""
    if isinstance(found, Tensor) and isinstance(result, Tensor):
        return found.to(result.dtype)
    return found


def _is_converted(inner: GraphModule, converted: Collection[str]) -> bool:
    return all(
        str(n.target) in converted or n.target is operator.getitem or _is_tuple(n.target)
        for n in inner.graph.nodes
        if n.op == "call_function"
    )


def _gives(inner: GraphModule, node: Node) -> bool:
    """Returns True if a graph returns all used results of an operator."""
    result: Any = inner.graph.output_node().args[0]
    if isinstance(result, Node):
        return True
    uses: Any = list(node.users)
    if any(use.target is not operator.getitem for use in uses):
        return False
    return all(result[use.args[1]] is not None or _is_only_checked(use) for use in uses)


def _is_only_checked(use: Node) -> bool:
    """Returns True if only checks of matrices use a result: a model in ONNX cannot raise."""
    return all(user.target in CHECKS_OF_MATRICES for user in use.users)


def _is_tuple(target: object) -> bool:
    """Returns True for a named tuple, which some PyTorch decompositions return."""
    return isinstance(target, type) and issubclass(target, tuple)


def _replace(graph: GraphModule, node: Node, inner: GraphModule) -> None:
    given = [leaf for leaf in pytree.tree_leaves((node.args, node.kwargs)) if type(leaf) is Node]
    known: dict[Node, Any] = dict(zip(inner.graph.find_nodes(op="placeholder"), given, strict=True))
    with graph.graph.inserting_before(node):
        for part in inner.graph.nodes:
            args: Any = torch.fx.map_arg(part.args, lambda n: known[n])
            if part.op == "get_attr":
                known[part] = _constant(graph, getattr(inner, str(part.target)), part)
            elif _is_tuple(part.target):
                known[part] = tuple(args)
            elif part.target is operator.getitem and isinstance(args[0], tuple):
                known[part] = args[0][args[1]]
            elif part.op == "call_function":
                known[part] = graph.graph.node_copy(part, lambda n: known[n])
                known[part].meta = {**node.meta, "val": part.meta.get("val")}
    result: Any = torch.fx.map_arg(inner.graph.output_node().args[0], lambda n: known[n])
    if isinstance(result, Node):
        node.replace_all_uses_with(result)
    else:
        for use in list(node.users):
            place: Any = use.args[1]
            if result[place] is None:
                for check in list(use.users):
                    graph.graph.erase_node(check)
            else:
                use.replace_all_uses_with(result[place])
            graph.graph.erase_node(use)
    graph.graph.erase_node(node)


def _constant(graph: GraphModule, tensor: Tensor, part: Node) -> Node:
    name = f"_opened_{len(graph.graph.nodes)}"
    graph.register_buffer(name, tensor)
    node = graph.graph.get_attr(name)
    node.meta = dict(part.meta)
    return node
