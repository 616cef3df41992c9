"""The numbers for which traced ones stand: in variables, and among the arguments of a call."""

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from calque.jitting.copied_counts import Count
from calque.jitting.retraces import NEEDED
from calque.program.number_nodes import NumberNode
from calque.program.python_numbers import PythonNode
from calque.program.traced_numbers import Comparisons, Place, TracedFloat
from calque.state import Row
from calque.state.numbers import NUMBERS, are_numbers, numbers_in, tuples_in, with_numbers
from calque.state.paths import Path

Variable = tuple[Row, Any]
"""A row and a key."""


class Given(threading.local):
    """The numbers among the arguments of the calls that threads make of one function."""

    def __init__(self) -> None:
        self.numbers: dict[int, Any] = {}


class GivenRow(Row):
    """The numbers among the arguments of a call, by index.

    Args:
        owner: the numbers of each thread.
        names: the names of their parameters.
    """

    __slots__ = ("names",)

    owner: "Given"

    def __init__(self, owner: "Given", names: Mapping[int, tuple[str, ...]]) -> None:
        self.names: Mapping[int, tuple[str, ...]] = names
        super().__init__(owner, Path("arguments"))

    def items(self) -> dict[Any, Any]:
        return dict(self.owner.numbers)

    def put(self, key: Any, value: object) -> None:
        self.owner.numbers[key] = value

    def name(self, key: Any) -> str:
        return self.names[key][0]


class Number(Count):
    """A number for which a traced number stands while a function is traced, or a tuple of some.

    Attributes:
        traced: the traced number, or the tuple of traced ones.
        computed: returns the number after each call; None if it does not change.
    """

    def __init__(self, row: Row, key: Any) -> None:
        super().__init__(row, key, 0)
        self.traced: Any = None
        self.computed: Callable[[], Any] | None = None
        self.is_traced = True

    @property
    def is_given(self) -> bool:
        """Returns True if it is an argument."""
        return isinstance(self.row, GivenRow)

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which code knows the variable."""
        row = self.row
        return row.names[self.key] if isinstance(row, GivenRow) else (row.name(self.key),)

    @property
    def place(self) -> Place:
        """The variable, as a comparable value."""
        return id(self.row.owner), str(self.key)

    def read(self) -> Any:
        """Returns the number before a call."""
        if self.is_traced:
            return self.original
        assert self.found is not None
        return self.found.get(self.key)

    def is_like(self) -> bool:
        """Returns True if the number before a call has the same type as in the trace."""
        now, kind = self.read(), type(self.original)
        return type(now) is kind and (kind in NUMBERS or are_numbers(self.original, now))

    def nodes(
        self, watch: Comparisons, kind: type[PythonNode] = PythonNode
    ) -> Iterator[NumberNode]:
        """Yields the nodes of its numbers, in order."""
        for index, value in enumerate(numbers_in(self.original)):
            read = self.read if type(self.original) in NUMBERS else partial(self._item, index)
            yield kind(read, watch, frozenset((self.place,)), value)

    def _item(self, index: int) -> Any:
        return next(itertools.islice(numbers_in(self.read()), index, None))

    def stand_in(self, nodes: Iterator[NumberNode]) -> Any:
        """Returns the number or tuple with traced numbers."""
        return with_numbers(
            self.original, lambda one: TracedFloat(next(nodes)) if type(one) in NUMBERS else one
        )


class NumbersGuard:
    """Guards the comparisons with numbers that are read in each call.

    Args:
        watch: the comparisons.
        numbers: the numbers.
    """

    guarded = "comparisons with numbers in variables"

    def __init__(self, watch: Comparisons, numbers: list[Number]) -> None:
        self._watch = watch
        self._numbers = numbers

    def holds(self) -> bool:
        """Returns True if every comparison has the same result."""
        return all(one.is_like() for one in self._numbers) and self._watch.holds()

    @contextmanager
    def holding_for(self, leaves: list[Any]) -> Iterator[None]:
        """A context manager in which the numbers among the arguments are those of a call.

        Args:
            leaves: the arguments of the call.
        """
        given = [(one, one.row.get(one.key)) for one in self._numbers if one.is_given]
        for one, _ in given:
            one.row.put(one.key, leaves[one.key])
        try:
            yield
        finally:
            for one, value in given:
                one.row.put(one.key, value)

    def why(self) -> str:
        """Returns what differs."""
        for one in self._numbers:
            if not one.is_like() and one.found is not None:
                return f"{one.found.name(one.key)} has another type"
        names = ", ".join(one.found.name(one.key) for one in self._numbers if one.found)
        if self._watch.has_changed():
            return f"{NEEDED}: {names}"
        return f"a comparison with one of these numbers has another result: {names}"


def is_known(value: object) -> bool:
    """Returns True for a traced number with a value."""
    return type(value) is TracedFloat and value.node.known


def is_traced(value: object) -> bool:
    """Returns True for a traced number, and for a tuple that contains one."""
    return any(type(one) is TracedFloat for one in _items(value))


def _items(value: Any) -> Iterator[Any]:
    if not issubclass(type(value), tuple):
        yield value
        return
    for one in tuples_in(value):
        yield from one


def computing(value: Any) -> Callable[[], Any]:
    """Returns a function that computes the traced numbers of a value."""
    if type(value) is TracedFloat:
        return value.node.compute
    nodes = with_numbers(value, lambda one: one.node if is_known(one) else one)
    del value  # which keeps the traced numbers alive
    return lambda: with_numbers(
        nodes, lambda one: one.compute() if isinstance(one, NumberNode) else one
    )


def given_among(places: Collection[Place], numbers: Iterable[Variable]) -> set[int]:
    """Returns the indexes of the arguments among variables."""
    found = [Number(row, key) for row, key in numbers if isinstance(row, GivenRow)]
    return {one.key for one in found if one.place in places}
