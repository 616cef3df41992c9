"""Serializes calls that change the same state, and keeps threads from reading donated arrays.

A program with donation deletes the arrays that it replaces shortly before the new ones are in their
cells. This does not matter to a thread that is alone on the device (`device.runtime.threads`). With
several threads, a call marks its cells by changing their class, which costs readers nothing:

- `ClaimedCell`: a new array will be written. Other calls that change the cell wait; a read returns
  the previous array.
- `Donated`: the array may already be deleted. A read waits for the new one.

A call claims all its cells at once, so that no two calls wait for each other. A function is traced
while no other thread runs a program, because a trace temporarily changes attributes and gradients,
and attributes all other changes to the function.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any, TypeVar

from jax import Array

from calque.device.memory.cell import Cell, active
from calque.device.runtime import threads
from calque.device.runtime.interrupts import waits
from calque.state.code_attributes import assignments

_Result = TypeVar("_Result")
_free = threading.Condition(threads.turn)
_array: Any = Cell.array  # type: ignore[misc]  # the slot
set_array = _array.__set__
"""Sets a cell's array, even while the cell is in use."""


class ClaimedCell(Cell):
    """A cell that a call will change."""

    __slots__ = ()


class Donated(Cell):
    """A cell whose array a call donates."""

    __slots__ = ()

    @property
    def array(self) -> Array:  # type: ignore[override]
        """The array, once there is a new one."""
        _settled(self)
        return _array.__get__(self)

    @array.setter
    def array(self, array: Array) -> None:
        _settled(self)
        set_array(self, array)


assignments.unnoticed = Cell, ClaimedCell, Donated


def _settled(cell: Cell) -> None:
    """Wait until no other thread donates a cell's array."""
    if active.settling:
        return
    with _free:
        while type(cell) is Donated:
            _free.wait()


def _mark(cells: Sequence[Cell], kind: type[Cell]) -> None:
    # One call of C code, so that no other thread sees only some of them marked.
    deque(map(setattr, cells, repeat("__class__"), repeat(kind)), 0)


class Stale(Exception):
    """Signals that values read before a turn have changed, and must be read again."""


class _Past:
    """The changes that have happened so far.

    Attributes:
        tracer: the thread that is tracing.
        changes: the number of turns and traces that have ended.
    """

    tracer: int | None = None
    changes = 0


past: _Past = _Past()

PYTHON = Cell(None)  # type: ignore[arg-type]
"""Represents attributes and containers: a call that assigns to any of them changes this cell."""

_traces = threading.RLock()
_running: list[int] = []  # the threads that have a turn, once for each turn
_queue: "list[Turn]" = []


class Turn:
    """One call's right to change some cells, among several threads.

    Attributes:
        changed: the cells.
    """

    __slots__ = ("_taken", "changed")

    def __init__(self, changed: Sequence[Cell]) -> None:
        self.changed: Sequence[Cell] = changed
        self._taken = False

    def take(
        self, read: Sequence[Cell], donating: bool, traced: bool, gather: Callable[[], _Result]
    ) -> _Result:
        """Wait for the cells, and return what `gather` finds at that moment.

        Args:
            read: the cells whose arrays are read.
            donating: whether the arrays of the changed cells are donated.
            traced: whether the call depends on Python state, which a trace may change.
            gather: reads the arrays.

        Raises:
            Stale: another thread is tracing.
        """
        if active.settling:  # called by the garbage collector in the middle of a turn
            return gather()
        me = threading.get_ident()
        with _free:
            _queue.append(self)
            try:
                while True:
                    if traced and past.tracer not in (None, me):
                        raise Stale
                    if not self._has_to_wait(read):
                        break
                    _free.wait()
                gathered = gather()
            finally:
                _queue.remove(self)
            self._taken = active.settling = True
            _running.append(me)
            _mark(self.changed, Donated if donating else ClaimedCell)
        return gathered

    def _has_to_wait(self, read: Sequence[Cell]) -> bool:
        kinds = set(map(type, self.changed))
        if kinds - {Cell} or Donated in map(type, read):
            return True
        return _queue[0] is not self and any(map(self._is_after, _queue[: _queue.index(self)]))

    def _is_after(self, other: "Turn") -> bool:
        return not set(self.changed).isdisjoint(other.changed)

    def close(self) -> None:
        """Make reads wait too, while the cells are being written."""
        if self._taken:
            _mark(self.changed, Donated)

    def give_back(self) -> None:
        """Release the turn; does nothing if it was not taken."""
        if not self._taken:
            return
        with _free:
            _mark(self.changed, Cell)
            self._taken = active.settling = False
            _running.remove(threading.get_ident())
            past.changes += 1
            _free.notify_all()


@contextmanager
@waits
def tracing() -> Iterator[None]:
    """A context manager in which no other thread traces or runs a program that depends
    on Python state.
    """
    me = threading.get_ident()
    with _traces:
        before, past.tracer = past.tracer, me
        try:
            with _free:
                _free.notify_all()  # threads that wait for cells must check again
                while any(thread != me for thread in _running):
                    _free.wait()
            yield
        finally:
            past.tracer = before
            past.changes += 1


def at_once(read: Sequence[Cell], gather: Callable[[], _Result]) -> _Result:
    """Returns the result of `gather`, called while no other thread changes any of the cells."""
    turn = Turn(())
    try:
        return turn.take(read, False, False, gather)
    finally:
        turn.give_back()


def wait_for_traces() -> None:
    """Wait until no other thread is tracing."""
    with _traces:
        pass
