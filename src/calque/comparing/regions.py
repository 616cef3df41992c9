"""Cuts graphs into stretches of nodes that come from one place of the program."""

import re
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from torch.fx.node import Node

from calque.comparing.naming import called, counts, is_part, writes
from calque.tracing.core.origins import origin_of
from calque.tracing.tracer.naming import is_name_of_kept

_QUOTED = re.compile(r"(?:\._modules)?\[['\"]?(\w+)['\"]?\]")
Chain = list[tuple[str, int]]


class CodePlace(NamedTuple):
    """A line of the program, in one call of a module; or the call of a layer, without a line."""

    file: str
    line: int
    path: str
    call: int


class Stretch(NamedTuple):
    """Consecutive nodes that come from one place."""

    place: CodePlace | None
    nodes: list[Node]

    @property
    def leaving(self) -> list[Node]:
        """The nodes that nodes outside the stretch use."""
        inside = set(self.nodes)
        return [n for n in self.nodes if any(counts(u) and u not in inside for u in n.users)]

    @property
    def calls(self) -> list[str]:
        """The names of the functions that its nodes call."""
        return [called(node) for node in self.nodes if not is_part(node)]

    @property
    def is_nothing(self) -> bool:
        """Returns True if it only calls layers that compute nothing."""
        return set(self.calls) == {"Identity"}

    @property
    def writes(self) -> bool:
        """Returns True if a node in it writes to a tensor that may be older."""
        return any(map(writes, self.nodes))

    @property
    def is_layer(self) -> bool:
        """Returns True if it is one call of a module, which the other graph may have inlined."""
        return any(node.op == "call_module" for node in self.nodes)


def stretches(nodes: Sequence[Node], leaves: set[str]) -> list[Stretch]:
    """Returns the nodes, cut where the place changes.

    Args:
        leaves: paths of modules whose insides count as one place.
    """
    return [Stretch(place, [*run]) for place, run in groupby(nodes, lambda n: _place(n, leaves))]


def single_calls(nodes: Sequence[Node]) -> list[Stretch]:
    """Returns the nodes, cut before each call, without their places."""
    starts = [i for i, node in enumerate(nodes) if not i or not is_part(node)]
    return [Stretch(None, [*nodes[i:j]]) for i, j in zip(starts, [*starts[1:], len(nodes)])]


def _place(node: Node, leaves: set[str]) -> CodePlace | None:
    origin = origin_of(node)
    if origin is None:
        return None
    chain = _chain(node)
    layer = next((link for link in chain if link[0] in leaves), None)
    if layer is not None:  # the lines of its hooks belong to it
        return CodePlace("", 0, *layer)
    path, call = chain[-1] if chain else ("", 0)
    return CodePlace(origin.file, origin.line, path, call)


def _chain(node: Node) -> Chain:
    """Returns the calls of modules that a node is in, outermost first.

    Only calls of the program's own modules count: a trace has a name for a module that the program
    creates or finds elsewhere, but a recording has none.
    """
    chain = []
    elsewhere: set[str] = set()
    for key, (name, kind) in (node.meta.get("nn_module_stack") or {}).items():
        path, number = path_of(name), str(key).rpartition("@")[2]
        first = path.partition(".")[0]
        if is_name_of_kept(first, kind):
            elsewhere.add(first)
        if path and first not in elsewhere:
            chain.append((path, int(number) if number.isdigit() and "@" in str(key) else 0))
    return chain


def path_of(name: str) -> str:
    """Returns the path of a module from a tracer's name for it.

    >>> path_of("layers.0"), path_of("L['self'].layers.0"), path_of("L['self']._modules['a'][1]")
    ('layers.0', 'layers.0', 'a.1')
    """
    return _QUOTED.sub(r".\1", name.removeprefix("L['self']")).lstrip(".")
