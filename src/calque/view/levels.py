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
    is_exported = isinstance(graph, ExportedProgram)
    aten = _lowered(graph, level)
    ops: dict[str, list[str]] = {}
    for name, nodes in _by_home(aten, is_exported).items():
        ops[name] = [str(node.target) for node in nodes]
    hlo: dict[str, list[str]] = {}
    for node, lines in stablehlo(graph if is_exported else aten, aten).items():
        hlo.setdefault(_home(node, is_exported), []).extend(lines)
    nodes = (replace(n, levels=_levels(ops.get(n.id), hlo.get(n.id))) for n in view.nodes)
    return replace(view, nodes=tuple(nodes))


def operators_of(graph: Any, level: Any = None) -> dict[str, list[Node]]:
    """The nodes of ATen operators that each node of a graph becomes, by the name of the node.

    Raises:
        TypeError: the graph has no operators.
        TraceError: it cannot be lowered to operators.
    """
    return _by_home(_lowered(graph, level), isinstance(graph, ExportedProgram))


def _lowered(graph: Any, level: Any) -> GraphModule:
    module = graph_module_of(graph, level)
    return module if isinstance(graph, ExportedProgram) else lower(marked(module))


def _by_home(aten: GraphModule, is_exported: bool) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {}
    for node in aten.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, _OPERATORS):
            found.setdefault(_home(node, is_exported), []).append(node)
    return found


def _levels(aten: list[str] | None, hlo: list[str] | None) -> Mapping[str, tuple[str, ...]]:
    found = {"aten": tuple(aten or ()), "stablehlo": tuple((hlo or ())[:_MOST])}
    return MappingProxyType({name: ops for name, ops in found.items() if ops})


def _home(node: Node, is_exported: bool) -> str:
    origin = origin_of(node)
    return node.name if is_exported or origin is None else origin.function


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


def stablehlo(program: GraphModule | ExportedProgram, graph: GraphModule) -> dict[Node, list[str]]:
    """The lines of StableHLO that each node of a graph of operators becomes, by their locations."""
    nodes = list(graph.graph.nodes)
    interpreter = _Located(program)
    inputs = [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")]
    if isinstance(program, ExportedProgram):
        specs = program.graph_signature.input_specs
        inputs = [v for v, s in zip(inputs, specs) if s.kind.name == "USER_INPUT"]
    with x64():
        avals = [_aval(value) for value in inputs]
        run = jax.jit(lambda *arrays: interpreter.flat(arrays, jax.random.key(0)))
        lowered = run.lower(*avals)
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

    def __init__(self, program: GraphModule | ExportedProgram) -> None:
        super().__init__(program)
        module = program.graph_module if isinstance(program, ExportedProgram) else program
        self._nodes = _NamedNodes(module)

    def flat(self, arrays: tuple[Any, ...], key: Any) -> Any:
        if self._program is None:
            return jax.tree.leaves(self(*arrays, rng=key))
        args, kwargs = torch.utils._pytree.tree_unflatten(
            list(arrays), self._program.call_spec.in_spec
        )
        return jax.tree.leaves(self(*args, rng=key, **kwargs))


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
    text = operation.get_asm(large_elements_limit=4).split("\n")[0]
    return shortened(text, 160)
