"""Lists to which a function only appends, so that a program need not compare what they hold."""

from collections import deque
from collections.abc import Collection, Set
from functools import cached_property
from typing import Any

from calque.jitting.copied_counts import Counts, described
from calque.jitting.effects import RowChange
from calque.state import Snapshot
from calque.state.grown import Grown, is_at_left, new_items
from calque.state.hidden_items import forget, hidden_items
from calque.state.rows import ListRow, Row


class Appending:
    """The lists to which a trace has only appended.

    Args:
        snapshot: the state of the trace.
        changed: the rows that have changed, before they are restored.
        given: the ids of what the call's arguments hold.
        counts: the counts that it may copy.
    """

    def __init__(
        self, snapshot: Snapshot, changed: Collection[Row], given: Set[int], counts: Counts
    ) -> None:
        self._counts = counts
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
        found = () if bounded else tuple(described(one, self._counts) for one in new)
        keys = list(range(len(new)))
        return RowChange(row, keys, False, appends=True, at_left=left, described=found), new

    def _alone(self) -> Collection[int]:
        lists, known = self._grown.among(self._changed), _known(self._snapshot, self._given)
        return hidden_items(self._snapshot.rows, lists, known).keys()


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
