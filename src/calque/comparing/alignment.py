"""Which nodes of two graphs stand for the same: by what they call, else by where they come from.

Two graphs of one tracer have the same nodes. Those of two tracers need not: one calls `Linear`, the
other `linear`, the third `t` and `addmm`. But each node knows its line and the call of the module
that it is in, so that graphs can be cut into stretches that come from one place. What leaves a
stretch is the same whatever it is made of.
"""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import groupby
from typing import NamedTuple

import torch
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.comparing.naming import called, counts, is_part, nodes_of, writes
from calque.tracing.core.origins import NodeOrigin, origin_of

_QUOTED = re.compile(r"(?:\._modules)?\[['\"]?(\w+)['\"]?\]")
Chain = list[tuple[str, int]]


class Place(NamedTuple):
    """A line of the program, in one call of a module."""

    file: str
    line: int
    path: str
    call: int


class Stretch(NamedTuple):
    """Nodes in a row that come from one place."""

    place: Place | None
    nodes: list[Node]

    @property
    def leaving(self) -> list[Node]:
        """The nodes that others use."""
        inside = set(self.nodes)
        return [n for n in self.nodes if any(counts(u) and u not in inside for u in n.users)]

    @property
    def calls(self) -> list[str]:
        """The names of what its nodes call."""
        return [called(node) for node in self.nodes if not is_part(node)]

    @property
    def is_nothing(self) -> bool:
        """Returns True if it only calls layers that call nothing themselves."""
        return set(self.calls) == {"Identity"}

    @property
    def writes(self) -> bool:
        """Returns True if a node in it writes to a tensor that may be older."""
        return any(map(writes, self.nodes))

    @property
    def is_layer(self) -> bool:
        """Returns True if it is one call of a module, which another graph may have opened."""
        return any(node.op == "call_module" for node in self.nodes)


class Pair(NamedTuple):
    """Nodes of two graphs that should give the same."""

    a: Node
    b: Node


def origin_of_pair(pair: Pair) -> NodeOrigin | None:
    """The line of the program that either node comes from."""
    return origin_of(pair.a) or origin_of(pair.b)


class Odd(NamedTuple):
    """Stretches of two graphs that differ in what they call; one of them may be missing."""

    a: Stretch | None
    b: Stretch | None


def aligned(a: GraphModule, b: GraphModule) -> Iterator[Pair | Odd]:
    """The nodes of two graphs that stand for the same, and what has no counterpart, in order."""
    first, second = nodes_of(a), nodes_of(b)
    if [*map(called, first)] == [*map(called, second)]:
        yield from map(Pair, first, second)
        return
    leaves = _leaves(a) | _leaves(b)
    rows, columns = (
        [stretch for stretch in stretches(nodes, leaves) if not stretch.is_nothing]
        for nodes in (first, second)
    )
    matcher = SequenceMatcher(None, [r.place for r in rows], [c.place for c in columns], False)
    for tag, i, j, k, m in matcher.get_opcodes():
        has_places = all(stretch.place is not None for stretch in (*rows[i:j], *columns[k:m]))
        if tag == "equal" or (has_places and j - i == m - k):  # the same, or a version of it
            for row, column in zip(rows[i:j], columns[k:m]):
                yield from _within(row, column)
            continue
        if has_places:
            yield from (Odd(row, None) for row in rows[i:j] if row.calls)
            yield from (Odd(None, column) for column in columns[k:m] if column.calls)


def _within(a: Stretch, b: Stretch) -> Iterator[Pair | Odd]:
    """Like `aligned`, within one place of the program."""
    if [*map(called, a.nodes)] == [*map(called, b.nodes)]:
        yield from map(Pair, a.nodes, b.nodes)
        return
    if a.calls != b.calls and not (a.is_layer or b.is_layer):
        yield Odd(a, b)
    if not (a.writes or b.writes):
        yield from _like(a.leaving, b.leaving)


def _like(left: list[Node], right: list[Node]) -> Iterator[Pair]:
    """What leaves both, in pairs: one with one, and of several those that look as no other does,
    for they may be made in another order.
    """
    if len(left) == len(right) == 1:
        yield Pair(left[0], right[0])
        return
    first, second = ([_looks(node) for node in side] for side in (left, right))
    if sorted(first) == sorted(second):
        for node, looks in zip(left, first):
            if first.count(looks) == 1:
                yield Pair(node, right[second.index(looks)])


def _looks(node: Node) -> str:
    value = node.meta.get("val")
    parts = value if isinstance(value, (tuple, list)) else (value,)
    tensors = (part for part in parts if isinstance(part, torch.Tensor))
    return str([(str(tensor.dtype), *map(str, tensor.shape)) for tensor in tensors])


def stretches(nodes: Sequence[Node], leaves: set[str]) -> list[Stretch]:
    """The nodes, cut where the place changes.

    Args:
        leaves: paths of modules whose inside is not told apart.
    """
    return [Stretch(place, [*run]) for place, run in groupby(nodes, lambda n: _place(n, leaves))]


def _place(node: Node, leaves: set[str]) -> Place | None:
    origin = origin_of(node)
    if origin is None:
        return None
    chain = _chain(node)
    path, call = next(
        (link for link in chain if link[0] in leaves), chain[-1] if chain else ("", 0)
    )
    return Place(origin.file, origin.line, path, call)


def _chain(node: Node) -> Chain:
    """The calls of modules that a node is in, the outermost first."""
    chain = []
    for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
        number = str(key).rpartition("@")[2]
        chain.append((path_of(path), int(number) if number.isdigit() and "@" in str(key) else 0))
    return [link for link in chain if link[0]]


def path_of(name: str) -> str:
    """The path of a module by the name that some tracer has for it.

    >>> path_of("layers.0"), path_of("L['self'].layers.0"), path_of("L['self']._modules['a'][1]")
    ('layers.0', 'layers.0', 'a.1')
    """
    return _QUOTED.sub(r".\1", name.removeprefix("L['self']")).lstrip(".")


def _leaves(graph: GraphModule) -> set[str]:
    return {str(node.target) for node in graph.graph.find_nodes(op="call_module")}
