"""Writes a graph in the language of Mermaid, which many pages and notebooks draw."""

import re
from collections.abc import Iterator

from calque.errors.printable import printable, shortened
from calque.view.collapsing import title
from calque.view.graph import ViewGraph, ViewNode
from calque.view.palette import COLOURS

_PLAIN = re.compile(r"[^A-Za-z0-9_ .,:/×…-]")


def write(graph: ViewGraph) -> str:
    """Returns the text of a Mermaid flowchart; nodes are `n0`, `n1`, … and groups are subgraphs."""
    names = {node.id: f"n{index}" for index, node in enumerate(graph.nodes)}
    groups = {group.id: f"g{index}" for index, group in enumerate(graph.groups)}
    lines = ["flowchart TB", *_parts(graph, "", "  ", names, groups)]
    arrows = {"data": "-->", "binding": "-.->"}
    lines += (f"  {names[e.source]} {arrows[e.kind]} {names[e.target]}" for e in graph.edges)
    used = sorted({node.family for node in graph.nodes})
    lines += (f"  classDef {f} fill:{COLOURS[f].light}22,stroke:{COLOURS[f].light}" for f in used)
    return "\n".join((*lines, ""))


def _parts(
    graph: ViewGraph, group: str, indent: str, names: dict[str, str], groups: dict[str, str]
) -> Iterator[str]:
    for part in graph.children.get(group, ()):
        if isinstance(part, ViewNode):
            look = shortened(" ".join(map(str, part.outputs)), 60)
            label = escaped(part.label) + (f"<br/>{escaped(look)}" if look else "")
            yield f'{indent}{names[part.id]}["{label}"]:::{part.family}'
        else:
            yield f'{indent}subgraph {groups[part.id]}["{escaped(title(part))}"]'
            yield from _parts(graph, part.id, indent + "  ", names, groups)
            yield f"{indent}end"


def escaped(text: str) -> str:
    """Returns a text for Mermaid, with special characters as numeric entities.

    >>> escaped('x["a"]')
    'x#91;#34;a#34;#93;'
    """
    return _PLAIN.sub(lambda found: f"#{ord(found.group())};", printable(text))
