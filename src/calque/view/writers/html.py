"""Writes a graph as a self-contained page, with the data and a viewer in plain JavaScript."""

import html
import json
import math
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from calque.errors.printable import printable
from calque.view.collapsing import title
from calque.view.graph import ViewGraph, ViewGroup, ViewNode
from calque.view.palette import COLOURS, SERVED

_PLACE = re.compile("@([A-Z]+)@")
_SCRIPTS = (
    "data",
    "state",
    "layers",
    "nested",
    "colours",
    "shapes",
    "stage",
    "map",
    "panel",
    "search",
    "pictures",
    "main",
)


def write(
    graph: ViewGraph, depth: int | None = None, overlays: Mapping[str, Mapping[str, float]] = {}
) -> str:
    """Returns the text of the page.

    Args:
        graph: the graph, with runs of similar groups folded.
        depth: how many levels of groups are open at first; None for as many as fit.
        overlays: numbers of nodes, by the name of the overlay.
    """
    page = {
        "TITLE": html.escape(printable(graph.name)),
        "STYLE": _asset("style.css"),
        "DATA": as_script(_data(graph, depth, overlays)),
        "SCRIPT": "\n".join(_asset(f"{name}.js") for name in _SCRIPTS),
    }
    return _PLACE.sub(lambda found: page[found.group(1)], _asset("page.html"))


@cache
def _asset(name: str) -> str:
    return files("calque.view").joinpath("assets", name).read_text(encoding="utf-8")


def as_script(value: object) -> str:
    """Returns JSON in which no name can end the enclosing script element."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(
    graph: ViewGraph, depth: int | None, overlays: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    nodes = {node.id: index for index, node in enumerate(graph.nodes)}
    groups = {group.id: index for index, group in enumerate(graph.groups)}
    return {
        "name": graph.name,
        "origin": graph.origin,
        "depth": depth,
        "nodes": [_node(node, groups) for node in graph.nodes],
        "groups": [_group(group, groups) for group in graph.groups],
        "edges": [
            [nodes[e.source], nodes[e.target], *((e.kind,) if e.kind != "data" else ())]
            for e in graph.edges
        ],
        "families": {name: list(colour) for name, colour in COLOURS.items()},
        "served": {name: list(colour) for name, colour in SERVED.items()},
        "overlays": {
            name: {id: value if math.isfinite(value) else str(value) for id, value in rows.items()}
            for name, rows in overlays.items()
        },
    }


def _node(node: ViewNode, groups: dict[str, int]) -> dict[str, Any]:
    source = node.source
    row = {
        "id": node.id,
        "label": node.label,
        "op": node.op,
        "kind": node.kind,
        "in": groups.get(node.group, -1),
        "family": node.family,
        "served": node.served,
        "out": [str(look) for look in node.outputs],
        "args": [list(pair) for pair in node.arguments],
        "params": [[name, str(look)] for name, look in node.parameters],
        "src": [source.file, source.line, source.function, source.text] if source else None,
        "levels": {name: list(ops) for name, ops in node.levels.items()},
    }
    always = ("id", "label", "op", "kind", "in", "family")
    return {k: v for k, v in row.items() if k in always or v not in (None, "", [], {})}


def _group(group: ViewGroup, groups: dict[str, int]) -> dict[str, Any]:
    return {
        "id": group.id,
        "in": groups.get(group.parent, -1),
        "name": group.name,
        "title": title(group),
        "path": group.path,
        "type": group.type,
        "call": group.call,
        "repeat": group.repeat,
    }
