"""Writes a graph as a tree of lines, for terminals and logs."""

from collections.abc import Iterator

from calque.errors.printable import printable
from calque.view.collapsing import title
from calque.view.graph import ViewGraph, ViewGroup, ViewNode


def rows(graph: ViewGraph, depth: int | None) -> Iterator[tuple[str, ViewNode | ViewGroup, bool]]:
    """Yields the rows of a tree: the prefix, a node or group, and whether it is collapsed.

    Only the first of several similar groups is shown.
    """
    yield from _rows(graph, "", "", depth, 0)


def _rows(
    graph: ViewGraph, group: str, before: str, depth: int | None, level: int
) -> Iterator[tuple[str, ViewNode | ViewGroup, bool]]:
    parts = [part for part in _shown(graph, group) if not _is_weight(graph, part)]
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        closed = isinstance(part, ViewGroup) and depth is not None and level + 1 >= depth
        yield before + ("└─ " if last else "├─ "), part, closed
        if isinstance(part, ViewGroup) and not closed:
            inner = before + ("   " if last else "│  ")
            yield from _rows(graph, part.id, inner, depth, level + 1)


def _shown(graph: ViewGraph, group: str) -> list[ViewNode | ViewGroup]:
    """Returns the members of a group; for a run of similar groups, those of the first and those
    after the run.
    """
    parts = list(graph.children.get(group, ()))
    if not group or graph.group[group].repeat == 1:
        return parts
    first, second, *_ = (i for i, part in enumerate(parts) if isinstance(part, ViewGroup))
    return [*graph.children[parts[first].id], *parts[first + 1 : second]]


def _is_weight(graph: ViewGraph, part: ViewNode | ViewGroup) -> bool:
    """Returns True for a weight, a check, or a group that only contains these."""
    if isinstance(part, ViewGroup):
        return all(_is_weight(graph, inner) for inner in graph.children[part.id])
    return part.kind in ("parameter", "constant", "check")


def details(part: ViewNode | ViewGroup) -> tuple[str, str]:
    """Returns the name in a line, and its details."""
    if isinstance(part, ViewGroup):
        return printable(title(part)), ""
    shown = " ".join(map(str, part.outputs))
    place = f"{_file(part.source.file)}:{part.source.line}" if part.source else ""
    return printable(part.label), printable("  ".join(filter(None, (shown, place))))


def _file(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]


def write(graph: ViewGraph, depth: int | None = None) -> str:
    """Returns the tree as plain text, with a line for each node and group except weights and
    checks.
    """
    left_out = sum(_is_weight(graph, node) for node in graph.nodes)
    count = f"{len(graph.nodes) - left_out} nodes"
    count += f" and {left_out} weights and checks" if left_out else ""
    lines = [f"{printable(graph.name)}  ({count}, {graph.origin})"]
    for branches, part, closed in rows(graph, depth):
        name, more = details(part)
        lines.append(f"{branches}{name}{' …' if closed else ''}{'  ' + more if more else ''}")
    return "\n".join(lines)
