"""The functions that read graphs, by the class of the graph.

Classes are identified by name, so that unused kinds of graphs import nothing.
"""

import importlib
from collections.abc import Callable
from typing import Any

from calque.view.graph import ViewGraph

Reader = Callable[..., ViewGraph]

_READERS: dict[str, str | Reader] = {
    "torch.fx.graph_module.GraphModule": "calque.view.readers.fx:read",
    "torch.fx.graph.Graph": "calque.view.readers.fx:read_graph",
    "torch.export.exported_program.ExportedProgram": "calque.view.readers.exported:read",
    "calque.interop.export.Exported": "calque.view.readers.exported:read_exported",
    "calque.tracing.record.recording.Recording": "calque.view.readers.recorded:read",
    "calque.federated.computation.Computation": "calque.view.readers.blocks:read_computation",
    "calque.federated.computation.PolymorphicComputation": "calque.view.readers.blocks:read_types",
    "calque.federated.building_blocks.blocks.BuildingBlock": "calque.view.readers.blocks:read",
    "calque.view.graph.ViewGraph": "calque.view.readers.table:read_view",
}


def reader(kind: type, function: Reader) -> None:
    """Register `function(graph)`, which returns a `ViewGraph`, for graphs of a class."""
    _READERS[_name(kind)] = function


def read_view(graph: ViewGraph) -> ViewGraph:
    """Returns the graph unchanged, because it has already been read."""
    return graph


def find(graph: object) -> Reader | None:
    """Returns the function that reads a graph; None if there is none."""
    for kind in type(graph).__mro__:
        found = _READERS.get(_name(kind))
        if isinstance(found, str):
            module, _, name = found.partition(":")
            found = getattr(importlib.import_module(module), name)
        if found is not None:
            return found
    return None


def read(graph: Any, **options: Any) -> ViewGraph:
    """Returns a graph of any kind as a `ViewGraph`.

    Args:
        graph: a graph of one of the classes in the table.
        **options: options of its reader, such as `level` for recordings.

    Raises:
        TypeError: no reader supports such graphs.
    """
    function = find(graph)
    if function is None:
        raise TypeError(
            f"calque.show does not support graphs of type {type(graph).__name__}.\nPass a graph "
            "module, a recording, an exported program, a federated computation, or a module or "
            "function with example arguments: calque.show(model, x)."
        )
    return function(graph, **options)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
