"""Folds runs of similar groups, such as the layers of a transformer, into one group with a
count.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from calque.view.graph import ViewGraph, ViewGroup, ViewNode

_Part = ViewNode | ViewGroup
_WORD = re.compile(r"\w+…?")


def folded(graph: ViewGraph, at_least: int = 2) -> ViewGraph:
    """Returns the graph with each run of similar sibling groups in a new group with a `repeat`
    count.

    Groups are similar if they have the same operators, arguments and shapes, in the same order and
    with the same edges. Identical nodes between the groups of a run are in the new group, too.
    """
    like = _Likeness(graph)
    home: dict[str, str] = {}
    made: list[ViewGroup] = []
    taken = {*graph.group, *graph.node}
    for parent, parts in graph.children.items():
        for run in _runs(like, parts, at_least):
            groups = [part for part in run if isinstance(part, ViewGroup)]
            fold = _fold(parent, groups, taken)
            taken.add(fold.id)
            made.append(fold)
            home.update((part.id, fold.id) for part in run)
    nodes = (replace(n, group=home[n.id]) if n.id in home else n for n in graph.nodes)
    groups = (replace(g, parent=home[g.id]) if g.id in home else g for g in graph.groups)
    return replace(graph, nodes=tuple(nodes), groups=(*groups, *made))


def _fold(parent: str, groups: list[ViewGroup], taken: set[str]) -> ViewGroup:
    first, last = groups[0], groups[-1]
    id = f"{first.id} … {last.id}"
    while id in taken:
        id += "′"
    path = f"{first.path} … {last.name}"
    name = f"{first.name} … {last.name}" if first.name != last.name else first.name
    return ViewGroup(id, parent, name, path, first.type, repeat=len(groups))


def _runs(like: "_Likeness", parts: tuple[_Part, ...], at_least: int) -> Iterator[list[_Part]]:
    """Returns the runs in one group: similar groups, and the nodes between them."""
    calls = [
        p for p in parts if isinstance(p, ViewGroup) or p.kind not in ("parameter", "constant")
    ]
    places = [i for i, part in enumerate(calls) if isinstance(part, ViewGroup)]
    index = 0
    while index < len(places):
        end = index + 1
        gap: tuple[object, ...] | None = None
        while end < len(places):
            between = tuple(like.of(p) for p in calls[places[end - 1] + 1 : places[end]])
            last, next_ = calls[places[end - 1]], calls[places[end]]
            same = _follows(last, next_) and like.of(last) == like.of(next_)
            if not same or (gap is not None and between != gap):
                break
            gap, end = between, end + 1
        if end - index >= at_least:
            yield calls[places[index] : places[end - 1] + 1]
        index = end


def _follows(last: _Part, next_: _Part) -> bool:
    """Returns True if a group is the next item of a module list, or the next call of a module."""
    assert isinstance(last, ViewGroup)
    assert isinstance(next_, ViewGroup)
    if last.path == next_.path:
        return next_.call == last.call + 1
    numbers = last.name.isdecimal() and next_.name.isdecimal()
    return numbers and int(next_.name) == int(last.name) + 1


class _Likeness:
    """A number for each node and group; similar ones have equal numbers."""

    def __init__(self, graph: ViewGraph) -> None:
        self._graph = graph
        self._inputs: dict[str, list[str]] = {}
        for edge in graph.edges:
            self._inputs.setdefault(edge.target, []).append(edge.source)
        self._numbers: dict[object, int] = {}
        self._known: dict[str, int] = {}

    def of(self, part: _Part) -> int:
        if isinstance(part, ViewNode):
            return self._number((part.op, part.kind, part.outputs, self._arguments(part)))
        if part.id not in self._known:
            self._known[part.id] = self._number((part.type, *self._shape(part)))
        return self._known[part.id]

    def _number(self, what: object) -> int:
        return self._numbers.setdefault(what, len(self._numbers))

    def _shape(self, group: ViewGroup) -> Iterator[object]:
        members = list(self._nodes(group.id))
        place = {node.id: i for i, node in enumerate(members)}
        for part in self._graph.children[group.id]:
            if isinstance(part, ViewGroup):
                yield part.name, self.of(part)  # the first of a run represents it
        for node in members:
            inside = tuple(place.get(source, -1) for source in self._inputs.get(node.id, ()))
            op = node.kind if node.kind in ("parameter", "constant") else node.op
            yield op, node.kind, node.outputs, inside, self._arguments(node)

    def _arguments(self, node: ViewNode) -> tuple[tuple[str, str], ...]:
        """Returns the arguments, without the names of nodes."""
        return tuple((name, _WORD.sub(self._unnamed, text)) for name, text in node.arguments)

    def _unnamed(self, word: re.Match[str]) -> str:
        is_cut = word.group().endswith("…")
        return "a node" if is_cut or word.group() in self._graph.node else word.group()

    def _nodes(self, group: str) -> Iterator[ViewNode]:
        for part in self._graph.children.get(group, ()):
            if isinstance(part, ViewNode):
                yield part
            else:
                yield from self._nodes(part.id)
