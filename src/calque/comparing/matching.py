"""Matches the stretches of two graphs, certain matches first, then likely ones.

The nodes of two graphs of one program have the same places. Those of two versions of a program do
not: an added line moves those below it, and a copy is in another file. Then stretches are matched
by the text of their lines, and then by their calls.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from torch.fx.node import Node

from calque.comparing.naming import called, is_part
from calque.comparing.regions import Stretch
from calque.tracing.core.origins import origin_of

Match = tuple[Stretch | None, Stretch | None]


def matched(rows: Sequence[Stretch], columns: Sequence[Stretch]) -> Iterator[Match]:
    """Yields the stretches of both in order, corresponding ones together.

    Unmatched stretches between two matches are paired by position if there are equally many on both
    sides; one without a counterpart is paired with None.
    """
    has_places = all(any(s.place is not None for s in side) for side in (rows, columns))
    return _matched(rows, columns, _KEYS if has_places else _KEYS[-1:])


def _matched(
    rows: Sequence[Stretch], columns: Sequence[Stretch], keys: Sequence[Callable[[Stretch], Any]]
) -> Iterator[Match]:
    if not rows or not columns or not keys:
        yield from _left(rows, columns)
        return
    first, second = [keys[0](row) for row in rows], [keys[0](column) for column in columns]
    for tag, i, j, k, m in SequenceMatcher(None, first, second, False).get_opcodes():
        if tag == "equal":
            yield from zip(rows[i:j], columns[k:m])
        else:
            yield from _matched(rows[i:j], columns[k:m], keys[1:])


def _left(rows: Sequence[Stretch], columns: Sequence[Stretch]) -> Iterator[Match]:
    if len(rows) == len(columns):
        yield from zip(rows, columns)
        return
    yield from ((row, None) for row in rows)
    yield from ((None, column) for column in columns)


def common_ends(a: Sequence[Node], b: Sequence[Node]) -> tuple[int, int]:
    """Returns how many nodes at the start, and at the end, of two stretches make the same calls.

    Parts of a result count only at the start, where the whole result counts too.
    """
    most = min(len(a), len(b))
    head = next((i for i in range(most) if not _is_like(a[i], b[i])), most)
    most -= head
    ends = ((a[-1 - i], b[-1 - i]) for i in range(most))
    is_end = (_is_like(x, y) and not is_part(x) for x, y in ends)
    return head, next((i for i, likes in enumerate(is_end) if not likes), most)


def _is_like(a: Node, b: Node) -> bool:
    return called(a) == called(b) and is_part(a) == is_part(b)


def _by_place(stretch: Stretch) -> Hashable:
    return stretch.place or object()


def _by_text(stretch: Stretch) -> Hashable:
    """Returns the text of the line, in the call of a module;
    a unique value if it cannot be read.
    """
    origin = origin_of(stretch.nodes[0])
    if stretch.place is None or origin is None or not origin.text:
        return object()
    return origin.text, stretch.place.path, stretch.place.call


def _by_calls_in_module(stretch: Stretch) -> Hashable:
    place = stretch.place
    return (*stretch.calls, None, place and place.path, place and place.call)


def _by_calls(stretch: Stretch) -> Hashable:
    return tuple(stretch.calls) or object()


_KEYS = (_by_place, _by_text, _by_calls_in_module, _by_calls)
