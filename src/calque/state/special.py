"""Counts the assignments to attributes by which Python finds the code of functions and of objects.

To read them costs more than to read others: while there is an audit hook, and calque has one from
the first trace on, Python tells it of each look at a function's code. It tells it of each
assignment, too, before that is made; so where nothing has been assigned, nothing has changed.
"""

from collections.abc import Callable, Sequence
from typing import Any

SPECIAL: tuple[tuple[str, ...], ...] = (
    ("__class__",),
    ("__code__", "__defaults__", "__kwdefaults__"),
)
"""The attributes, by the rows that hold them."""

SPECIAL_NAMES: frozenset[str] = frozenset(name for names in SPECIAL for name in names)
ASSIGNED: frozenset[str] = frozenset(("object.__setattr__", "object.__delattr__"))
"""The audit events of assignments; their second argument is the name."""


class _Assignments:
    """Of a process.

    Attributes:
        count: how many there have been.
        are_told: whether there is a hook that counts them (see `running`).
        unnoticed: classes that calque gives cells again and again.
    """

    count = 0
    are_told = False
    unnoticed: tuple[Any, Any, Any] = (None, None, None)


assignments: _Assignments = _Assignments()


class Special:
    """Special attributes hold what they held; looked at only where one was assigned to.

    Args:
        comparisons: compare all of them.

    Attributes:
        seen: the count of assignments when they were last seen to hold it.
    """

    def __init__(self, comparisons: Sequence[Callable[[], bool]]) -> None:
        self._comparisons = comparisons
        self.seen: int = -1

    def hold(self) -> bool:
        """Returns True if each holds what it held."""
        count = assignments.count  # read first: what is assigned from here on is seen
        if count == self.seen:
            return True
        if not all(compare() for compare in self._comparisons):
            return False
        if assignments.are_told:
            self.seen = count
        return True
