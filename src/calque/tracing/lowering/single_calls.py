"""Lowers single calls of a graph."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node, map_arg

from calque.errors.handlers import is_of_handler
from calque.tracing.graph.modes import blocks_around
from calque.tracing.graph.purity import TracedGraph
from calque.tracing.lowering.bindings import resolve
from calque.tracing.lowering.lowering import lower
from calque.upstream.torch_internals import (
    HigherOrderOperator,
    OpOverload,
    enter_autocast,
    exit_autocast,
    pytree,
)

OPERATORS = (OpOverload, HigherOrderOperator)


@dataclass(frozen=True)
class Lowered:
    """The lowered form of one node.

    Attributes:
        graph: the graph of ATen operators, whose inputs are the nodes that the call takes, in the
            order of `inputs_of`; None if the call cannot be lowered.
        reason: why the call cannot be lowered.
    """

    graph: GraphModule | None
    reason: str = ""

    @property
    def operators(self) -> list[Node]:
        """The calls of operators, in order."""
        nodes = self.graph.graph.nodes if self.graph is not None else ()
        return [n for n in nodes if n.op == "call_function" and isinstance(n.target, OPERATORS)]


def lower_singly(node: Node, module: GraphModule, functional: bool = True) -> Lowered:
    """Lowers one call of a graph, for the shapes in the `meta` of its arguments.

    The enclosing `torch.autocast` blocks apply.
    """
    if node.target in (enter_autocast, exit_autocast):
        return Lowered(None, "a block of torch.autocast begins or ends")
    try:
        with torch.no_grad():
            return Lowered(lower(_alone(node, module), functional=functional))
    except Exception as error:  # the call may need more than shapes
        if is_of_handler(error):
            raise
        text = str(error) or type(error).__name__
        return Lowered(None, text.split("\n")[0])


def inputs_of(node: Node, module: GraphModule) -> Mapping[Node, Any]:
    """Returns the nodes among a call's arguments, and their abstract values.

    Raises:
        ValueError: the abstract value of a node is not known.
    """
    values = {source: value_of(source, module) for source in node.all_input_nodes}
    return {
        source: value
        for source, value in values.items()
        if source.op != "get_attr" or isinstance(value, torch.Tensor)
    }


def _alone(node: Node, module: GraphModule) -> GraphModule:
    """Returns a graph with one node, whose arguments are inputs."""
    graph = TracedGraph()
    nodes: dict[Node, Node] = {}
    for index, (source, value) in enumerate(inputs_of(node, module).items()):
        nodes[source] = graph.placeholder(f"x{index}")
        nodes[source].meta["val"] = value
    for source in node.all_input_nodes:
        if source not in nodes:
            nodes[source] = graph.node_copy(source)
    blocks = [graph.node_copy(block) for block in blocks_around(node)]
    result = graph.node_copy(node, nodes.__getitem__)
    for block in reversed(blocks):
        graph.call_function(exit_autocast, (block,))
    graph.output(result)
    alone = GraphModule(module, graph)
    alone.training = module.training
    return alone


def value_of(node: Node, module: GraphModule) -> Any:
    """Returns the abstract value of a node.

    Raises:
        ValueError: it is not known.
    """
    for key in ("val", "example_value"):
        if key in node.meta:
            return node.meta[key]
    if node.op == "get_attr":
        return resolve(module, str(node.target))
    raise ValueError(f"the shape of {node.name} is not known")


def likeness(node: Node, module: GraphModule) -> Any:
    """Returns a key that nodes with the same lowered form share; unique if it is not known."""
    places = {source: index for index, source in enumerate(node.all_input_nodes)}

    def look(source: Node) -> Any:
        try:
            value = value_of(source, module)
        except ValueError:
            return source.name
        leaves, spec = pytree.tree_flatten(value)
        return places[source], str(spec), *map(_look, leaves)

    called = module.get_submodule(str(node.target)) if node.op == "call_module" else node.target
    training = isinstance(called, torch.nn.Module) and called.training
    arguments = map_arg((node.args, node.kwargs), look)
    text = str(called) if isinstance(called, torch.nn.Module) else called
    blocks = tuple(block.args for block in blocks_around(node))
    return node.op, text, training, repr(arguments), repr(blocks)


def _look(leaf: object) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    strides = tuple(map(str, leaf.stride())) if leaf.layout is torch.strided else ()
    return str(leaf.dtype), tuple(map(str, leaf.shape)), strides, str(leaf.device)
