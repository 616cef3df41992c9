"""The numbers in variables of a jitted function that have differed between calls."""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from calque.jitting.copied_counts import Counts
from calque.jitting.recording import TraceRecording
from calque.jitting.variable_numbers import Variable
from calque.state import Row, StateGuard
from calque.state.values import instance_dict, is_same_key
from calque.state.weak import WeakRow

_MOST = 64


class LearnedNumbers:
    """The variables of a jitted function whose numbers differ between calls.

    Attributes:
        variables: those whose numbers are traced.
    """

    def __init__(self) -> None:
        self.variables: tuple[Variable, ...] = ()
        self._refused: set[str] = set()

    def learn(self, guard: object) -> None:
        """Record the numbers that have changed, for which a guard has failed."""
        if not isinstance(guard, StateGuard):
            return
        for row, key in guard.changed_numbers():
            name = row.name(key)
            known = any(_is_same(row, key, *variable) for variable in self.variables)
            if known or name in self._refused or isinstance(row, WeakRow):
                continue
            self._add(row, key)
        self._follow(guard)

    def foresee(self, recording: TraceRecording, leaves: Iterable[Any]) -> bool:
        """Record the numbers that a program both changes and compares, so that the next call would
        find them changed; returns True if there are new ones.

        Args:
            recording: the recording of the program.
            leaves: the arguments, which may be other objects in the next call.
        """
        known = self.variables
        given = {id(one) for leaf in leaves for one in (leaf, instance_dict(leaf))}
        changes = [one for one in recording.changed_numbers if id(one[0].owner) not in given]
        if changes and not (recording.unrepeatable or recording.survivors):
            with _after_call(changes):
                for guard in recording.guards:
                    if isinstance(guard, StateGuard) and not guard.holds():
                        self.learn(guard)
        return self.variables is not known

    def _add(self, row: Row, key: Any) -> None:
        self._forget(row.name(key))  # the same variable of an object that another has replaced
        self.variables = (*self.variables, (_without_contents(row), key))[-_MOST:]

    def _follow(self, guard: StateGuard) -> None:
        """Find the variables again in objects that have replaced others."""
        owners = {row.name(key): row.owner for row, key in self.variables}
        for row, key in guard.free_numbers():
            if owners.get(row.name(key), row.owner) is not row.owner:
                self._add(row, key)

    def recorded(
        self,
        record: Callable[[tuple[Variable, ...], Counts], TraceRecording],
        variables: tuple[Variable, ...],
        counts: Counts | None,
    ) -> TraceRecording:
        """Returns the recording of a trace with traced numbers in some variables.

        Args:
            record: traces the function, given the variables and `counts`.
            variables: the variables.
            counts: the counts for which other numbers stand.
        """
        counts = counts or Counts()
        variables = tuple(v for v in variables if not counts.stands_in(*v))
        if not variables:
            return record((), counts)
        try:
            recording = record(variables, counts)
        except Exception:
            if counts.lost:
                raise
            recording = record((), counts)  # raises the error again, unless a number caused it
        self._refuse(v for v in variables if v not in recording.numbers)
        return recording

    def _refuse(self, variables: Iterable[Variable]) -> None:
        for row, key in variables:
            self._refused.add(row.name(key))
            self._forget(row.name(key))

    def _forget(self, name: str) -> None:
        self.variables = tuple(v for v in self.variables if v[0].name(v[1]) != name)


@contextmanager
def _after_call(changes: list[tuple[Row, Any, Any]]) -> Iterator[None]:
    """A context manager in which variables have the numbers that a call assigns."""
    before = [(row, key, row.get(key)) for row, key, _ in changes]
    try:
        for row, key, number in changes:
            row.put(key, number)
        yield
    finally:
        for row, key, number in before:
            row.put(key, number)


def _is_same(row: Row, key: Any, other: Row, name: Any) -> bool:
    return type(row) is type(other) and row.owner is other.owner and is_same_key(key, name)


def _without_contents(row: Row) -> Row:
    bare = copy.copy(row)
    bare.before = {}  # which would keep alive what it holds
    return bare
