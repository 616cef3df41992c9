"""Writes a graph as JSON for Model Explorer (github.com/google-ai-edge/model-explorer)."""

import json
from typing import Any

from calque.view.collapsing import title
from calque.view.graph import ViewGraph, ViewNode


def write(graph: ViewGraph) -> str:
    """Returns the text of the file, with one graph whose groups are namespaces."""
    incoming: dict[str, list[str]] = {}
    for edge in graph.edges:
        incoming.setdefault(edge.target, []).append(edge.source)
    nodes = [_node(graph, node, incoming.get(node.id, [])) for node in graph.nodes]
    return json.dumps({"label": graph.name, "graphs": [{"id": graph.name, "nodes": nodes}]})


def _node(graph: ViewGraph, node: ViewNode, sources: list[str]) -> dict[str, Any]:
    place = (title(graph.group[id]).replace("/", "∕") for id in graph.ancestry(node.group))
    return {
        "id": node.id,
        "label": node.label,
        "namespace": "/".join(place),
        "attrs": [{"key": key, "value": value} for key, value in _attributes(node) if value],
        "incomingEdges": [
            {"sourceNodeId": source, "sourceNodeOutputId": "0", "targetNodeInputId": str(index)}
            for index, source in enumerate(sources)
        ],
        "outputsMetadata": [
            {"id": str(index), "attrs": [{"key": "tensor_shape", "value": str(look)}]}
            for index, look in enumerate(node.outputs)
        ],
    }


def _attributes(node: ViewNode) -> list[tuple[str, str]]:
    place = [("source", str(node.source)), ("line", node.source.text)] if node.source else []
    return [
        ("op", node.op),
        ("kind", node.kind),
        ("family", node.family),
        ("served by", node.served),
        *place,
        *((f"argument {name}", value) for name, value in node.arguments),
        *((f"parameter {name}", str(look)) for name, look in node.parameters),
        *((level, "\n".join(ops)) for level, ops in node.levels.items()),
    ]
