"""Lists to which a function only appends, so that a program need not compare what they hold."""

from collections import deque
from collections.abc import Collection, Set
from functools import cached_property
from typing import Any

from calque.jitting.effects import RowChange
from calque.state import ATOMIC, Snapshot
from calque.state.grown import Grown, is_at_left, new_items
from calque.state.hidden_items import forget, hidden_items
from calque.state.rows import ListRow, Row

_DEPTH = 8


class Appending:
    """The lists to which a trace has only appended.

    Args:
        snapshot: the state of the trace.
        changed: the rows that have changed, before they are restored.
        given: the ids of what the call's arguments hold.
    """

    def __init__(self, snapshot: Snapshot, changed: Collection[Row], given: Set[int]) -> None:
        self._snapshot = snapshot
        self._changed = changed
        self._given = given

    @cached_property
    def _grown(self) -> Grown:
        return self._snapshot.namespaces.grown()

    def change(self, row: Row, now: Collection[Any]) -> tuple[RowChange, list[Any]] | None:
        """Returns the change of a row, with the appended items; None if it is something else."""
        if type(row) is not ListRow:
            return None
        ways = self._grown.ways_into(row.owner)
        new = None if ways is None else new_items(row, now, ways, self._alone)
        if ways is None or new is None:
            return None
        left = bool(is_at_left(ways))
        bounded = isinstance(row.owner, deque) and row.owner.maxlen is not None
        described = () if bounded else tuple(map(_described, new))
        keys = list(range(len(new)))
        return RowChange(row, keys, False, appends=True, at_left=left, described=described), new

    def _alone(self) -> Collection[int]:
        lists, known = self._grown.among(self._changed), _known(self._snapshot, self._given)
        return hidden_items(self._snapshot.rows, lists, known).keys()


def _described(value: Any, depth: int = 0) -> Any:
    """Returns what every trace must append, without the identity of objects."""
    kind = type(value)
    if kind in ATOMIC:
        return value
    if depth == _DEPTH or kind not in (tuple, list, dict):
        return kind.__name__
    items = value.items() if kind is dict else value
    return kind.__name__, *(_described(item, depth + 1) for item in items)


def leave_out_appended(snapshot: Snapshot, rows: Collection[Row], given: Set[int]) -> Set[int]:
    """Leave out what lists hold to which the function has only appended, if no other code reads
    them; returns the ids of what nothing else holds.

    Args:
        snapshot: the state of the trace.
        rows: the rows of the lists.
        given: the ids of what the call's arguments hold.
    """
    lists, hidden = _hidden(snapshot, rows, given)
    for row in lists:
        row.leave_out()
    forget(snapshot.rows, hidden)
    return hidden.keys()


def hidden_in(snapshot: Snapshot, rows: Collection[Row], given: Set[int]) -> Set[int]:
    """Returns the ids of what only lists hold to which the function has only appended; see
    `leave_out_appended`.
    """
    return _hidden(snapshot, rows, given)[1].keys()


def _hidden(
    snapshot: Snapshot, rows: Collection[Row], given: Set[int]
) -> tuple[list[ListRow], dict[int, Any]]:
    if not rows:
        return [], {}
    lists = snapshot.namespaces.grown().among(rows)
    return lists, hidden_items(snapshot.rows, lists, _known(snapshot, given))


def _known(snapshot: Snapshot, given: Set[int]) -> Set[int]:
    return given | snapshot.unnamed | snapshot.weak.keys()
