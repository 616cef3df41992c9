"""Lists to which a function only appends, so that a program need not compare what they hold."""

from collections.abc import Collection, Set
from typing import Any

from calque.jitting.effects import RowChange
from calque.state import Snapshot
from calque.state.grown import is_at_left, new_items
from calque.state.hidden_items import forget, hidden_items
from calque.state.rows import ListRow, Row


def appended(
    snapshot: Snapshot, row: ListRow, now: Collection[Any], given: Set[int]
) -> tuple[RowChange, list[Any]] | None:
    """Returns the change of a list, with the appended items, if the function has only appended to
    it; otherwise None.

    Args:
        snapshot: the state of the trace.
        row: the row of the list, with its earlier contents.
        now: its contents.
        given: the ids of what the call's arguments hold.
    """

    def alone() -> Collection[int]:
        return hidden_items(snapshot.rows, [row], _known(snapshot, given)).keys()

    ways = snapshot.namespaces.grown().ways_into(row.owner)
    new = None if ways is None else new_items(row, now, ways, alone)
    if ways is None or new is None:
        return None
    left = bool(is_at_left(ways))
    return RowChange(row, list(range(len(new))), False, appends=True, at_left=left), new


def leave_out_appended(snapshot: Snapshot, rows: Collection[Row], given: Set[int]) -> Set[int]:
    """Leave out what lists hold to which the function has only appended, if no other code reads
    them; returns the ids of what nothing else holds.

    Args:
        snapshot: the state of the trace.
        rows: the rows of the lists.
        given: the ids of what the call's arguments hold.
    """
    if not rows:
        return frozenset()
    lists = snapshot.namespaces.grown().among(rows)
    hidden = hidden_items(snapshot.rows, lists, _known(snapshot, given))
    for row in lists:
        row.leave_out()
    forget(snapshot.rows, hidden)
    return hidden.keys()


def _known(snapshot: Snapshot, given: Set[int]) -> Set[int]:
    return given | snapshot.unnamed | snapshot.weak.keys()
