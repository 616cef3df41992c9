"""Counts assignments to the attributes that determine the code of functions and objects.

Reading these attributes is slow, because from the first trace on calque has an audit hook, which
Python calls for every read of a function's code. Python also calls it before every assignment to
them, so without assignments nothing has changed.
"""

from collections.abc import Callable, Sequence
from typing import Any

SPECIAL: tuple[tuple[str, ...], ...] = (
    ("__class__",),
    ("__code__", "__defaults__", "__kwdefaults__"),
)
"""The attributes by the rows that contain them."""

SPECIAL_NAMES: frozenset[str] = frozenset(name for names in SPECIAL for name in names)
ASSIGNED: frozenset[str] = frozenset(("object.__setattr__", "object.__delattr__"))
"""The audit events of assignments; their second argument is the name."""


class _Assignments:
    """The assignments in this process.

    Attributes:
        count: the number of assignments.
        are_told: whether the audit hook is installed (see `running`).
        unnoticed: values that do not count: classes that calque itself assigns to cells.
    """

    count = 0
    are_told = False
    unnoticed: tuple[Any, Any, Any] = (None, None, None)


assignments: _Assignments = _Assignments()


class Special:
    """Checks that special attributes are unchanged, comparing them only after an assignment.

    Args:
        comparisons: functions that together compare all of them.

    Attributes:
        seen: the count of assignments at the last successful comparison.
    """

    def __init__(self, comparisons: Sequence[Callable[[], bool]]) -> None:
        self._comparisons = comparisons
        self.seen: int = -1

    def hold(self) -> bool:
        """Returns True if all are unchanged."""
        count = assignments.count  # read first, so that later assignments are detected
        if count == self.seen:
            return True
        if not all(compare() for compare in self._comparisons):
            return False
        if assignments.are_told:
            self.seen = count
        return True
