"""`calque.show(...)`."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch.fx.node import Node

from calque.tracing.record import record
from calque.tracing.record.recording import Level
from calque.view.levels import with_levels
from calque.view.readers import read
from calque.view.readers.table import find
from calque.view.view import View


def show(
    graph: object,
    /,
    *args: Any,
    depth: int | None = None,
    level: Level | None = None,
    overlays: Mapping[Any, Any] | None = None,
    levels: bool = False,
    **kwargs: Any,
) -> View:
    """Shows a graph as a tree in the terminal, a picture, or a page for the browser.

    Args:
        graph: a graph module from any tracer (`calque.trace`, dynamo, torch.fx), a `Recording`, a
            `torch.export.ExportedProgram` or a federated computation; or a module or function,
            which is recorded while it runs on `args`.
        *args: an example call, for a module or function.
        depth: how many levels of modules are shown, at least 1. None shows all levels; the page
            then opens as many as fit.
        level: for a recording: `"module"`, `"function"` (the default) or `"aten"`.
        overlays: numbers to colour nodes by: a dict from nodes, or ids of nodes, to numbers, or a
            dict from names to such dicts. `calque.view.overlays` has functions that compute some:
            FLOPs, bytes, times, and errors of the device.
        levels: whether to find the ATen operators and StableHLO of each node, for the page.
        **kwargs: the keyword arguments of the example call.

    Returns:
        A `View`: `print` it, show it in a notebook, `save("graph.html")`.

    Raises:
        TypeError: `graph` is neither a graph nor a module or function with arguments, or has no
            levels to choose from.
        ValueError: `depth` is less than 1, or an overlay has a key that is not a node.

    >>> import calque, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> print(calque.show(model, torch.ones(1, 3), level="module"))
    Sequential  (4 nodes, a recording)
    ├─ input  float32[1, 3]  ...
    ├─ 0: Linear  float32[1, 2]  ...
    ├─ 1: ReLU  float32[1, 2]  ...
    └─ output  ...
    """
    if find(graph) is None and callable(graph) and (args or kwargs):
        graph = record(graph, *args, **kwargs)
    elif args or kwargs:
        given = ", ".join(f"{name}=" for name in kwargs)
        raise TypeError(
            f"a {type(graph).__name__} is already a graph: leave out "
            + (f"{given}, which calque.show does not have" if given else "the example arguments")
            + ('; for a page, calque.show(graph).save("graph.html")' if given else "")
        )
    if isinstance(graph, View):
        graph = graph.graph
    reader = find(graph)
    if level is not None and reader and "level" not in inspect.signature(reader).parameters:
        raise TypeError(
            f"a {type(graph).__name__} has only one level; for another one, record the model: "
            f"calque.show(calque.record(model, x), level={level!r})"
        )
    view = read(graph) if level is None else read(graph, level=level)
    if levels:
        view = with_levels(graph, view, level)
    found = _overlays(overlays or {})
    for name, values in found.items():
        unknown = [id for id in values if id not in view.node]
        if unknown:
            raise ValueError(
                f"the overlay {name!r} has a number for {unknown[0]!r}, which is not a node"
            )
    return View(view, depth, found)


def _overlays(given: Mapping[Any, Any]) -> dict[str, dict[str, float]]:
    """Returns the overlays by name; one without a name is called "overlay"."""
    if not given:
        return {}
    if not all(isinstance(values, Mapping) for values in given.values()):
        given = {"overlay": given}
    return {str(name): {_id(k): float(v) for k, v in vs.items()} for name, vs in given.items()}


def _id(node: object) -> str:
    return node.name if isinstance(node, Node) else str(getattr(node, "id", node))
