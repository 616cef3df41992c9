"""What each node of a graph becomes: the ATen operators it runs, and their StableHLO."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import jax
import torch
from torch.export import ExportedProgram
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.device.memory.cell import x64
from calque.device.runtime.dtypes import to_numpy
from calque.graph.interpreter import JaxInterpreter, Nodes
from calque.tracing.core.origins import NodeOrigin, origin_of
from calque.tracing.graph.purity import TracedGraph
from calque.tracing.lower.lowering import lower
from calque.tracing.record import Recording
from calque.view.graph import ViewGraph
from calque.view.printable import shortened

_SCOPE = re.compile(r"calque_node_(\d+)_")
_MOST = 40
_OPERATORS = (torch._ops.OpOverload, torch._ops.HigherOrderOperator)


def graph_module_of(graph: Any, level: Any = None) -> GraphModule:
    """The graph module that a view of `graph` shows.

    Raises:
        TypeError: there is none, as of a federated computation.
    """
    if isinstance(graph, Recording):
        return graph.graph(level or "function")
    if isinstance(graph, ExportedProgram):
        return graph.graph_module
    if isinstance(graph, GraphModule):
        return graph
    raise TypeError(f"a {type(graph).__name__} has no operators: only graph modules have")


def with_levels(graph: Any, view: ViewGraph, level: Any = None) -> ViewGraph:
    """The view with what each node becomes in `ViewNode.levels`.

    Raises:
        TypeError: the graph has no operators.
        TraceError: it cannot be lowered to operators.
        UnsupportedOpError: an operator has no form in StableHLO.
    """
    aten = lower(marked(graph_module_of(graph, level)))
    ops = {name: [str(node.target) for node in found] for name, found in _by_home(aten).items()}
    hlo: dict[str, list[str]] = {}
    for node, lines in stablehlo(aten).items():
        hlo.setdefault(_home(node), []).extend(lines)
    nodes = (replace(n, levels=_levels(ops.get(n.id), hlo.get(n.id))) for n in view.nodes)
    return replace(view, nodes=tuple(nodes))


def operators_of(graph: Any, level: Any = None) -> dict[str, list[Node]]:
    """The nodes of ATen operators that each node of a graph becomes, by the name of the node.

    Raises:
        TypeError: the graph has no operators.
        TraceError: it cannot be lowered to operators.
    """
    return _by_home(lower(marked(graph_module_of(graph, level))))


def _by_home(aten: GraphModule) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {}
    for node in aten.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, _OPERATORS):
            found.setdefault(_home(node), []).append(node)
    return found


def _levels(aten: list[str] | None, hlo: list[str] | None) -> Mapping[str, tuple[str, ...]]:
    found = {"aten": tuple(aten or ()), "stablehlo": tuple((hlo or ())[:_MOST])}
    return MappingProxyType({name: ops for name, ops in found.items() if ops})


def _home(node: Node) -> str:
    origin = origin_of(node)
    return node.name if origin is None else origin.function


def marked(graph: GraphModule) -> GraphModule:
    """A copy of a graph whose nodes have their own names as the functions of their origins."""
    made = TracedGraph()
    made._codegen = graph.graph._codegen
    nodes: dict[Node, Node] = {}
    for node in graph.graph.nodes:
        copied = nodes[node] = made.node_copy(node, nodes.__getitem__)
        origin = origin_of(node) or NodeOrigin("", 0, "")
        copied.meta["origin"] = origin._replace(function=node.name)
    module = GraphModule(graph, made)
    module.training = graph.training
    return module


def stablehlo(graph: GraphModule) -> dict[Node, list[str]]:
    """The lines of StableHLO that each node of a graph of operators becomes, by their locations."""
    nodes = list(graph.graph.nodes)
    interpreter = _Located(graph)
    with x64():
        given = [_aval(node.meta.get("val")) for node in graph.graph.find_nodes(op="placeholder")]
        arrays = [i for i, value in enumerate(given) if isinstance(value, jax.ShapeDtypeStruct)]

        def run(*values: Any) -> Any:
            inputs = list(given)
            for index, value in zip(arrays, values):
                inputs[index] = value
            found = jax.tree.leaves(interpreter(*inputs, rng=jax.random.key(0)))
            return [value for value in found if isinstance(value, jax.Array)]

        lowered = jax.jit(run).lower(*(given[i] for i in arrays))
    functions: dict[str, Any] = {}
    text: Any = lowered.compiler_ir("stablehlo")
    for function in text.body.operations:
        functions[function.name.value] = function.operation
    found: dict[Node, list[str]] = {}
    for operation in _inside(functions["main"]):
        scopes = _SCOPE.findall(str(operation.location))
        if scopes:
            lines = found.setdefault(nodes[int(scopes[0])], [])
            lines += (_line(inner) for inner in _opened(operation, functions))
    return found


class _Located(JaxInterpreter):
    """As its base, with the number of each node in the locations of what it becomes."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self._nodes = _NamedNodes(graph)


class _NamedNodes(Nodes):
    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self._numbers = {node: i for i, node in enumerate(module.graph.nodes)}

    def run_node(self, n: Node) -> Any:
        with jax.named_scope(f"calque_node_{self._numbers[n]}_"):
            return super().run_node(n)


def _aval(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return jax.ShapeDtypeStruct(tuple(map(int, value.shape)), to_numpy(value.dtype))


def _inside(operation: Any) -> Iterator[Any]:
    """The operations that a function consists of."""
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                if inner.operation.name != "func.return":
                    yield inner.operation


def _opened(operation: Any, functions: dict[str, Any]) -> Iterator[Any]:
    """An operation, or what the function does that it calls."""
    if operation.name != "func.call":
        yield operation
        return
    for inner in _inside(functions[operation.attributes["callee"].value]):
        yield from _opened(inner, functions)


def _line(operation: Any) -> str:
    text = operation.get_asm(large_elements_limit=4, use_local_scope=True).split("\n")[0]
    return shortened(text, 160)
