"""The ATen operators that each node of a graph runs; each node is lowered separately, and equal
calls only once.

So a node that cannot be lowered, such as one that reads a value, does not affect the others.
"""

from collections.abc import Iterator
from typing import Any

from torch.export import ExportedProgram
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.interop.export import Exported
from calque.tracing.lowering.single_calls import Lowered, likeness, lower_singly
from calque.tracing.record import Recording
from calque.tracing.record.recording import Level
from calque.view.readers.fx import is_check
from calque.view.readers.fx_names import member


def graph_module_of(graph: object, level: Level | None = None) -> GraphModule:
    """Returns the graph module that a view of `graph` shows.

    Raises:
        TypeError: there is none, as for a federated computation.
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
    raise TypeError(f"a {type(graph).__name__} has no operators: pass a graph module")


def lowered(graph: object, level: Level | None = None) -> dict[str, Lowered]:
    """Returns the lowered form of each call, by the id of the node in a view; equal calls share it.

    Raises:
        TypeError: the graph has no operators.
        ValueError: no shapes in it are known.
    """
    module = graph_module_of(graph, level)
    if not any("val" in n.meta or "example_value" in n.meta for n in module.graph.nodes):
        raise ValueError(
            "the shapes in the graph are not known, but are needed to find its operators.\nTrace "
            "the program with example inputs, or record it."
        )
    known: dict[Any, Lowered] = {}
    found: dict[str, Lowered] = {}
    for id, node, home in _calls("", module):
        key = likeness(node, home)
        if key not in known:
            known[key] = lower_singly(node, home)
        found[id] = known[key]
    return found


def _calls(prefix: str, module: GraphModule) -> Iterator[tuple[str, Node, GraphModule]]:
    """Yields the calls of a graph and its branches, with the modules that contain them."""
    for node in module.graph.nodes:
        if node.op.startswith("call") and not is_check(node):
            yield prefix + node.name, node, module
        branch = member(module, node) if node.op == "get_attr" else None
        if isinstance(branch, GraphModule):
            yield from _calls(f"{prefix}{node.name}/", branch)
