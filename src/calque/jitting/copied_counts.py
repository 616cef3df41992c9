"""Counts that a function only copies into what it appends: `log.append((self.step, loss))`.

A program compares the numbers that code reads. If such a count has changed, the function is traced
with a number in its place that occurs nowhere else. Where the number then appears among what the
function has appended, each call puts the count that it finds.
"""

from __future__ import annotations

import copy
import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calque.program.traced_numbers import TracedFloat
from calque.state import MISSING, Row, StateGuard
from calque.state.contents import nested
from calque.state.rows import ClassRow
from calque.state.values import ATOMIC, is_same_key
from calque.state.weak import WeakRow

if TYPE_CHECKING:
    from calque.jitting.recording import TraceRecording
    from calque.program.results import Outputs
    from calque.state import Snapshot

_MOST = 64
_SPACE = 128
"""The number of bits of the numbers near one that stands for a count."""
_FIRST = 64
"""The number of random bits above the position of a count."""
_DEPTH = 8

Place = tuple[Row, Any]
"""A row and a key."""


class Uncopied(BaseException):
    """Signals that code may read counts, so the function is traced again with their numbers.

    Attributes:
        counts: the counts.
    """

    def __init__(self, counts: Iterable[Count]) -> None:
        super().__init__()
        self.counts: list[Count] = list(counts)


class Count:
    """A count, for which another number stands while a function is traced.

    Attributes:
        row, key: its variable, in the rows of an earlier trace.
        number: the number that stands for it.
        original: the count before the trace.
        found: the row of this trace; None if it has none.
    """

    def __init__(self, row: Row, key: Any, number: int) -> None:
        self.row = row
        self.key: Any = key
        self.number = number
        self.original: Any = row.get(key)
        self.found: Row | None = None

    def is_in(self, row: Row) -> bool:
        """Returns True if a row has the variable."""
        if type(row) is not type(self.row) or self.key not in row.before:
            return False
        if isinstance(row, ClassRow) and isinstance(self.row, ClassRow):
            return row.kind is self.row.kind
        return row.owner is self.row.owner


@dataclass(frozen=True)
class Copied:
    """A copy of a count, plus a constant, in what each call appends."""

    row: Row
    key: Any
    offset: int

    def build(self, outputs: Outputs) -> int:
        """Returns the number for a call, before it increments the count."""
        return self.row.get(self.key) + self.offset

    def described(self) -> tuple[Any, ...]:
        """Returns what another trace must copy as well."""
        return Copied, self.row.name(self.key), self.offset


class Counts:
    """The counts of one trace for which other numbers stand.

    Args:
        counts: the counts.

    Attributes:
        lost: whether a failed trace has changed state that cannot be restored.
        formula: returns the description of a traced number.
    """

    def __init__(self, counts: Iterable[Count] = ()) -> None:
        self._all = list(counts)
        self.lost = False
        self.formula: Callable[[Any], Any] | None = None

    def __bool__(self) -> bool:
        return bool(self._all) or self.formula is not None

    def stands_in(self, row: Row, key: Any) -> bool:
        """Returns True if a number stands for a variable."""
        return any(one.row.owner is row.owner and is_same_key(one.key, key) for one in self._all)

    def find(self, rows: Iterable[Row]) -> None:
        """Find the variables among the rows of the trace."""
        for row in rows if self._all else ():
            for one in self._all:
                if one.found is None and one.is_in(row):
                    one.found = row

    @property
    def places(self) -> set[Place]:
        """Returns the variables that the trace has found."""
        return {(one.found, one.key) for one in self._all if one.found is not None}

    def check(self, snapshot: Snapshot, assigned: Iterable[Place], places: set[Place]) -> None:
        """Check that code only counts and copies the counts.

        Args:
            snapshot: the state of the trace.
            assigned: the variables that the function assigns, with None for all keys of a row.
            places: the counts that it increments.

        Raises:
            Uncopied: it may do more with them.
        """
        if not self._all:
            return
        names, rows = snapshot.namespaces, list(snapshot.rows.values())
        copying = names.unread(places, list(assigned), self.places).copying(rows)
        refused = copying.refused(self.places, names.grown)
        refused |= {place for place in self.places if place in assigned}
        refused |= {(row, key) for row, key in self.places if (row, None) in assigned}
        found = [one for one in self._all if (one.found, one.key) in refused]
        if found:
            raise Uncopied(found)

    def copied(self, value: Any) -> Any:
        """Returns the count of which a value is a copy, or how calls compute a traced number; None
        if it is something else.
        """
        if type(value) is TracedFloat and self.formula is not None:
            return self.formula(value)
        one = self._near(value)
        if one is None:
            return None
        if one.found is None:
            raise Uncopied([one])
        number: Any = value
        return Copied(one.found, one.key, number - one.number)

    def refuse_any(self, values: Iterable[Any]) -> None:
        """Raise `Uncopied` if any value is a copy of a count."""
        for value in values:
            self.refuse(value)

    def refuse(self, value: Any) -> None:
        """Raise `Uncopied` if a value is a copy of a count."""
        one = self._near(value)
        if one is not None:
            raise Uncopied([one])

    def occur_in(self, value: Any) -> bool:
        """Returns True if a value is a copy of a count or a traced number, or a container of
        one.
        """
        return bool(self) and any(
            type(one) is TracedFloat or self._near(one) is not None for one in nested(value)
        )

    def _near(self, value: Any) -> Count | None:
        if type(value) is not int or not self._all:
            return None
        return next((c for c in self._all if abs(value - c.number) >> (_SPACE - 2) == 0), None)

    def put_back(self, rows: Iterable[Row]) -> None:
        """Expect the original numbers in all rows."""
        for row in rows if self._all else ():
            for one in self._all:
                if one.is_in(row):
                    row.before[one.key] = one.original


class CopiedCounts:
    """The counts of a jitted function for which other numbers stand in its traces.

    Attributes:
        places: their variables.
    """

    def __init__(self) -> None:
        self.places: tuple[Place, ...] = ()
        self._refused: list[Count] = []

    def learn(self, guard: object) -> None:
        """Record the counts that have changed, for which a guard has failed."""
        if not isinstance(guard, StateGuard) or len(self.places) >= _MOST:
            return
        for row, key in guard.copied():
            known = any(Count(*place, 0).is_in(row) for place in self.places if place[1] == key)
            refused = any(one.is_in(row) and is_same_key(one.key, key) for one in self._refused)
            if not (known or refused or isinstance(row, WeakRow)):
                bare = copy.copy(row)
                bare.before = {}  # which would keep alive what it holds
                self.places += ((bare, key),)

    def recorded(
        self, record: Callable[[Counts | None], TraceRecording], places: tuple[Place, ...]
    ) -> TraceRecording:
        """Returns the recording of a trace in which other numbers stand for some counts, or of one
        with their own numbers if the function may read them.

        Args:
            record: traces the function, given the counts.
            places: the variables of the counts.
        """
        if not places:
            return record(None)
        counts = Counts()
        try:
            with standing_in(places) as counts:
                recording = record(counts)
            recording.copied = places
            return recording
        except Uncopied as error:
            self.refuse(error.counts)
        except Exception:
            if counts.lost:
                raise
            recording = record(None)  # raises the error again, unless a number caused it
            self.refuse(Count(row, key, 0) for row, key in places)
            return recording
        return self.recorded(record, tuple(p for p in places if p in self.places))

    def refuse(self, counts: Iterable[Count]) -> None:
        """Do not use these counts again."""
        found = list(counts)
        self._refused += found
        self.places = tuple(
            (row, key)
            for row, key in self.places
            if not any(one.row is row and is_same_key(one.key, key) for one in found)
        )


@contextmanager
def standing_in(places: Iterable[Place]) -> Iterator[Counts]:
    """A context manager in which other numbers stand for counts."""
    first = secrets.randbits(_FIRST) | 1 << _FIRST
    numbers = (((first << 16) + i) << _SPACE for i in itertools.count())
    counts = [Count(row, key, next(numbers)) for row, key in places if type(row.get(key)) is int]
    try:
        for one in counts:
            one.row.put(one.key, one.number)
        yield Counts(counts)
    finally:
        for one in counts:
            if one.row.get(one.key) is not MISSING:
                one.row.put(one.key, one.original)


def described(value: Any, counts: Counts, depth: int = 0) -> Any:
    """Returns what every trace must append, without the identity of objects."""
    kind = type(value)
    if kind is TracedFloat:
        return (Copied,)
    if kind in ATOMIC:
        copied = counts.copied(value)
        return value if copied is None else copied.described()
    if depth == _DEPTH or kind not in (tuple, list, dict):
        return kind.__name__
    items = value.items() if kind is dict else value
    return kind.__name__, *(described(item, counts, depth + 1) for item in items)


def agree(first: Any, second: Any, same: Callable[[Any, Any], bool]) -> bool:
    """Returns True if two traces append the same; `second` may copy a count for which the first has
    found a number.
    """
    if type(second) is not tuple:
        return same(first, second)
    if second[:1] == (Copied,):
        return type(first) in (int, float) or same(first, second)
    if type(first) is not tuple or len(first) != len(second):
        return False
    return all(agree(a, b, same) for a, b in zip(first, second))
