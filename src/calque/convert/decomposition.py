"""`opened`: replaces calls in a graph with the ATen operators that they run."""

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.tracing.graph.checks import CHECKS
from calque.tracing.graph.purity import TracedGraph, has_effect
from calque.tracing.graph.templates import rebuilt
from calque.tracing.graph.value_guards import expect_answer, expect_one
from calque.tracing.lowering.bindings import resolve
from calque.tracing.lowering.single_calls import OPERATORS, inputs_of, likeness, lower_singly
from calque.upstream import torch_c

_ASK = (getattr, expect_answer, expect_one)  # they read a field or a value
_PART = type(operator.getitem)
_COPY = torch.ops.aten.copy_.default


def opened(
    graph: GraphModule, may_open: Callable[[Node], bool], wants: Callable[[GraphModule], bool]
) -> GraphModule:
    """Returns a copy of the graph with calls replaced by their operators.

    The operators write to the same tensors as the call, in the same order. A call that cannot be
    lowered from shapes alone is kept. Where gradients are off, results are detached.

    Args:
        graph: a graph with `val` in the `meta` of its nodes.
        may_open: returns True if a call may be replaced.
        wants: returns True if a call should be replaced with this graph of operators.
    """
    opening = _Opening(graph)
    for node in graph.graph.nodes:
        opening.follow_mode(node)
        inner = opening.operators_of(node) if may_open(node) else None
        if inner is not None and wants(inner):
            opening.put(node, inner)
        else:
            opening.keep(node)
    return opening.module()


class _Opening:
    """The graph under construction."""

    def __init__(self, graph: GraphModule) -> None:
        self._old = graph
        self._made = TracedGraph()
        # From nodes of the old graph to nodes of the new one, in containers.
        self._values: dict[Node, Any] = {}
        self._constants: dict[str, Any] = {}
        self._known: dict[Any, GraphModule | None] = {}
        self._records: Any = True  # whether gradients are enabled
        self._found: dict[Node, Any] = {}

    def follow_mode(self, node: Node) -> None:
        """Record whether gradients are enabled from here on."""
        if node.target is torch_c.is_grad_enabled:
            self._found[node] = self._records
        elif node.target is torch_c.set_grad_enabled:
            (mode,) = node.args
            self._records = self._found.get(mode, mode) if isinstance(mode, Node) else mode

    def operators_of(self, node: Node) -> GraphModule | None:
        """Returns the graph of a call's operators; None if it cannot replace the call."""
        if node.op not in ("call_function", "call_method"):
            return None
        is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
        if not is_tensor and any(user.target in _ASK for user in node.users):
            return None
        if any(map(self._is_object, node.all_input_nodes)):
            return None
        key = likeness(node, self._old), self._records
        if key not in self._known:
            found = lower_singly(node, self._old)
            if any(each.target is _COPY for each in found.operators):
                found = lower_singly(node, self._old, functional=False)
            fits = found.graph is not None and _is_plain(found.graph, node)
            if not found.operators:  # correct if the call does nothing, as `contiguous` may
                fits = fits and bool(node.all_input_nodes) and not has_effect(node)
            if fits and found.graph is not None and not self._records:
                _detach(found.graph)
            self._known[key] = found.graph if fits else None
        return self._known[key]

    def _is_object(self, node: Node) -> bool:
        """Returns True for a member that is not a tensor, such as a branch."""
        if node.op != "get_attr":
            return False
        return not isinstance(resolve(self._old, str(node.target)), torch.Tensor)

    def keep(self, node: Node) -> None:
        """Copy a node unchanged."""
        if node.op == "output":
            self._made.output(self._new(node.args[0])).meta = dict(node.meta)
            return
        is_part, part = self._part(node, self._values)
        copied = None if is_part else self._made.node_copy(node, self._values.__getitem__)
        self._values[node] = part if is_part else copied

    def put(self, node: Node, inner: GraphModule) -> None:
        """Copy a call's operators instead of the call."""
        places = inner.graph.find_nodes(op="placeholder")
        given = [self._values[each] for each in inputs_of(node, self._old)]
        known: dict[Node, Any] = dict(zip(places, given, strict=True))
        for part in inner.graph.nodes:
            if part.op == "get_attr":
                known[part] = self._constant(resolve(inner, str(part.target)), part)
            elif part.op == "call_function" and part.target is rebuilt:
                known[part] = tuple(known[each] for each in part.args[1:])
            elif part.op == "call_function" and part.target not in CHECKS:
                is_part, known[part] = self._part(part, known)
                if not is_part:
                    known[part] = self._made.node_copy(part, known.__getitem__)
                    known[part].meta = {**node.meta, "val": part.meta.get("val")}
        result = inner.graph.output_node().args[0]
        self._values[node] = torch.fx.map_arg(result, known.__getitem__)

    def _part(self, node: Node, known: dict[Node, Any]) -> tuple[bool, Any]:
        """Returns the part that a node takes from a container of new nodes, if it does."""
        if node.target is not operator.getitem or not isinstance(node.args[0], Node):
            return False, None
        whole: Any = known[node.args[0]]
        key: Any = node.args[1]
        is_part = isinstance(whole, tuple | list | dict)
        return is_part, whole[key] if is_part else None

    def _new(self, argument: Any) -> Any:
        return torch.fx.map_arg(argument, self._values.__getitem__)

    def _constant(self, value: object, part: Node) -> Node | None:
        if not isinstance(value, torch.Tensor):
            return None  # the class of a rebuilt result
        name = f"_opened_{len(self._constants)}"
        while hasattr(self._old, name):
            name += "_"
        self._constants[name] = value
        made = self._made.get_attr(name)
        made.meta = dict(part.meta)
        return made

    def module(self) -> GraphModule:
        """Returns the new graph, with the members of the old one."""
        copied = TracedGraph()
        copied.graph_copy(self._old.graph, {})
        made = GraphModule(self._old, copied)
        for name, value in self._constants.items():
            made.register_buffer(name, value)
        made.graph = self._made
        return made


def _detach(inner: GraphModule) -> None:
    """Detach the results of the graph, so that no gradient passes."""
    detached: dict[Node, Node] = {}

    def made(node: Node) -> Node:
        val = node.meta.get("val")
        if not isinstance(val, torch.Tensor) or not isinstance(node.target, (*OPERATORS, _PART)):
            return node
        if not (val.is_floating_point() or val.is_complex()):
            return node
        if node not in detached:
            with inner.graph.inserting_after(node):
                detached[node] = inner.graph.call_function(torch.ops.aten.detach.default, (node,))
            detached[node].meta = dict(node.meta)
        return detached[node]

    result = inner.graph.output_node()
    for user in (*inner.graph.find_nodes(op="call_function", target=rebuilt), result):
        user.args = torch.fx.map_arg(user.args, made)


def _is_plain(inner: GraphModule, node: Node) -> bool:
    """Returns True if a graph has only operators, whose result is the call's."""
    result = inner.graph.output_node().args[0]
    if isinstance(node.meta.get("val"), torch.Tensor) and not isinstance(result, Node):
        return False  # `x.grad`, which is not known without data
    for part in inner.graph.nodes:
        if part.op == "call_function" and part.target is rebuilt:
            given = node.meta.get("val")
            if not isinstance(given, tuple) or len(given) != len(part.args) - 1:
                return False
        elif part.op == "call_function" and part.target not in CHECKS:
            if part.target is not operator.getitem and not isinstance(part.target, OPERATORS):
                return False
    return True
