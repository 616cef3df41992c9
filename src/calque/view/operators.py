"""The ATen operators that each node of a graph runs: each is lowered by itself, once for its like.

So a node that cannot be lowered, such as one that reads a value, hides nothing of the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.graph import Graph
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node, map_arg
from torch.utils import _pytree as pytree

from calque.interop.export import Exported
from calque.tracing.lower.lowering import lower
from calque.tracing.record import Recording
from calque.tracing.record.recording import Level
from calque.view.readers.fx import is_check
from calque.view.readers.fx_names import member

_OPERATORS = (torch._ops.OpOverload, torch._ops.HigherOrderOperator)


@dataclass(frozen=True)
class Lowered:
    """What one node becomes.

    Attributes:
        graph: of ATen operators; None where there is none.
        reason: why there is none.
    """

    graph: GraphModule | None
    reason: str = ""

    @property
    def operators(self) -> list[Node]:
        """The calls of operators, in order."""
        nodes = self.graph.graph.nodes if self.graph is not None else ()
        return [n for n in nodes if n.op == "call_function" and isinstance(n.target, _OPERATORS)]


def graph_module_of(graph: Any, level: Level | None = None) -> GraphModule:
    """The graph module that a view of `graph` shows.

    Raises:
        TypeError: there is none, as of a federated computation.
        TraceError: it is a recording without a graph.
    """
    if isinstance(graph, Recording):
        return graph.graph(level or "function")
    if isinstance(graph, Exported):
        graph = graph.exported_program
    if isinstance(graph, ExportedProgram):
        return graph.graph_module
    if isinstance(graph, GraphModule):
        return graph
    raise TypeError(f"a {type(graph).__name__} has no operators: only graph modules have")


def lowered(graph: Any, level: Level | None = None) -> dict[str, Lowered]:
    """What each call of a graph becomes, by the id of the node in a view; like calls share it.

    Raises:
        TypeError: the graph has no operators.
        ValueError: nothing is known of the shapes in it.
    """
    module = graph_module_of(graph, level)
    if not any("val" in n.meta or "example_value" in n.meta for n in module.graph.nodes):
        raise ValueError(
            "nothing is known of the shapes in the graph, by which operators are found.\n"
            "Trace the program with example inputs, or record it."
        )
    known: dict[Any, Lowered] = {}
    found: dict[str, Lowered] = {}
    for id, node, home in _calls("", module):
        key = _likeness(node, home)
        if key not in known:
            known[key] = _lowered_alone(node, home)
        found[id] = known[key]
    return found


def _calls(prefix: str, module: GraphModule) -> Iterator[tuple[str, Node, GraphModule]]:
    """The calls of a graph and of its branches, with the modules that they are in."""
    for node in module.graph.nodes:
        if node.op.startswith("call") and not is_check(node):
            yield prefix + node.name, node, module
        branch = member(module, node) if node.op == "get_attr" else None
        if isinstance(branch, GraphModule):
            yield from _calls(f"{prefix}{node.name}/", branch)


def _lowered_alone(node: Node, module: GraphModule) -> Lowered:
    try:
        with torch.no_grad():
            return Lowered(lower(_alone(node, module)))
    except Exception as error:  # whatever the call needs besides shapes
        text = str(error) or type(error).__name__
        return Lowered(None, text.split("\n")[0])


def _alone(node: Node, module: GraphModule) -> GraphModule:
    """A graph of one node; what it takes are inputs."""
    graph = Graph()
    nodes: dict[Node, Node] = {}
    for index, source in enumerate(node.all_input_nodes):
        value = _value(source, module)
        if source.op == "get_attr" and not isinstance(value, torch.Tensor):
            nodes[source] = graph.node_copy(source)
            continue
        nodes[source] = graph.placeholder(f"x{index}")
        nodes[source].meta["val"] = value
    graph.output(graph.node_copy(node, nodes.__getitem__))
    alone = GraphModule(module, graph)
    alone.training = module.training
    return alone


def _value(node: Node, module: GraphModule) -> Any:
    for key in ("val", "example_value"):
        if key in node.meta:
            return node.meta[key]
    if node.op == "get_attr":
        return member(module, node)
    raise ValueError(f"nothing is known of the shape of {node.name}")


def _likeness(node: Node, module: GraphModule) -> Any:
    """What two nodes have in common that become the same; nodes without a value are like none."""

    def look(source: Node) -> Any:
        try:
            value = _value(source, module)
        except ValueError:
            return source.name
        leaves, spec = pytree.tree_flatten(value)
        return str(spec), *map(_look, leaves)

    called = module.get_submodule(str(node.target)) if node.op == "call_module" else node.target
    training = isinstance(called, torch.nn.Module) and called.training
    arguments = map_arg((node.args, node.kwargs), look)
    text = str(called) if isinstance(called, torch.nn.Module) else called
    return node.op, text, training, repr(arguments)


def _look(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    strides = tuple(map(str, leaf.stride())) if leaf.layout is torch.strided else ()
    return str(leaf.dtype), tuple(map(str, leaf.shape)), strides, str(leaf.device)
