"""Writes a graph in the language of Graphviz."""

from collections.abc import Iterator

from calque.errors.printable import printable, shortened
from calque.view.collapsing import title
from calque.view.graph import ViewGraph, ViewGroup, ViewNode
from calque.view.palette import COLOURS

_HEAD = (
    (
        'graph [rankdir=TB, fontname="Helvetica", fontsize=11, nodesep=0.25, ranksep=0.35, '
        'style="rounded", color="#cbd5e1", compound=true];'
    ),
    (
        'node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=10, height=0.3, '
        'margin="0.12,0.05", fontcolor="#0f172a"];'
    ),
    'edge [color="#94a3b8", arrowsize=0.6];',
)


def write(graph: ViewGraph) -> str:
    """Returns the text of a DOT file; nodes are `n0`, `n1`, … and groups are clusters, in order."""
    names = {node.id: f"n{index}" for index, node in enumerate(graph.nodes)}
    clusters = {group.id: f"cluster_{index}" for index, group in enumerate(graph.groups)}
    lines = [f"digraph {quoted(graph.name)} {{", *(f"  {line}" for line in _HEAD)]
    lines += _parts(graph, "", "  ", names, clusters)
    lines += (f"  {names[e.source]} -> {names[e.target]}{_style(e.kind)};" for e in graph.edges)
    return "\n".join((*lines, "}", ""))


def _parts(
    graph: ViewGraph, group: str, indent: str, names: dict[str, str], clusters: dict[str, str]
) -> Iterator[str]:
    for part in graph.children.get(group, ()):
        if isinstance(part, ViewNode):
            yield f"{indent}{names[part.id]} [{_attributes(part)}];"
        else:
            yield f"{indent}subgraph {clusters[part.id]} {{"
            yield f"{indent}  label={quoted(title(part))};"
            yield f"{indent}  tooltip={quoted(_path(part))};"
            yield from _parts(graph, part.id, indent + "  ", names, clusters)
            yield f"{indent}}}"


def _path(group: ViewGroup) -> str:
    return group.path or group.name


def _attributes(node: ViewNode) -> str:
    colour = COLOURS[node.family].light
    look = " ".join(map(str, node.outputs))
    label = _escaped(node.label) + (rf"\n{_escaped(shortened(look, 60))}" if look else "")
    return (
        f'label="{label}", tooltip={quoted(f"{node.id}: {node.op}")}, '
        f'color="{colour}", fillcolor="{colour}22"'
    )


def _style(kind: str) -> str:
    return "" if kind == "data" else " [style=dashed]"


def quoted(text: str) -> str:
    r"""Returns a DOT string that shows the text unchanged.

    >>> print(quoted('a "b" \\N'))
    "a \"b\" \\N"
    """
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    text = printable(text).replace("&", "&amp;")
    return text.replace("\\", "\\\\").replace('"', '\\"')
