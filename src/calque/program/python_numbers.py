"""Numbers of Python's state that each call reads, and what it computes from them in Python.

Where an operator takes such a number, its value is an input of the program. All arithmetic is
repeated in Python, so results have the same bits and types as in an eager call.
"""

import operator
from collections.abc import Callable
from typing import Any

from calque.program.number_nodes import Comparisons, NumberNode
from calque.program.traced_numbers import Place
from calque.state.numbers import NUMBERS, WHOLE, is_number

_MOST = 2**53
_LONGEST = 200
"""The number of operations above which a formula is not repeated in each call."""
_CERTAIN = frozenset((operator.add, operator.sub, operator.mul, operator.neg))
"""Operations that always return a number of the same type, for numbers of the same types."""


class Formula:
    """A number that each call computes. Traces of the same function number them in the same order.

    Attributes:
        index: its index among those of the trace.
    """

    __slots__ = ("_compute", "index")

    def __init__(self, compute: Callable[[], Any], index: int) -> None:
        self._compute = compute
        self.index: int = index

    def __call__(self) -> Any:
        return self._compute()

    def __eq__(self, other: object) -> bool:
        return type(other) is Formula and other.index == self.index

    def __hash__(self) -> int:
        return hash((Formula, self.index))


class PythonNode(NumberNode):
    """The node of a number that is computed in Python.

    Args:
        compute: computes it.
        watch: of the trace.
        places: the variables from which it is computed.
        value: its value in the trace.
        length: the number of operations that compute it.
    """

    in_python = True

    def __init__(
        self,
        compute: Callable[[], Any],
        watch: Comparisons,
        places: frozenset[Place],
        value: int | float,
        length: int = 1,
    ) -> None:
        self._traced: Any = None
        self._length = length
        self._kind: type = type(value)
        super().__init__(None, compute, watch, places, self._kind in WHOLE)

    @property
    def kind(self) -> type:
        """The class of the number."""
        return self._kind

    @property
    def traced(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number in the program, which takes it as an input; code needs the number itself where
        there can be none.
        """
        if self._traced is None:
            if self.integral:
                compute = self.compute
                if not -_MOST <= compute() <= _MOST:
                    self.watch.give_up(self)
                self.watch.answers.append((lambda: -_MOST <= compute() <= _MOST, True))
            self._traced = self.watch.new_input(self.compute, "number")
            if self._traced is None:
                self.watch.give_up(self)
        return self._traced

    @traced.setter
    def traced(self, value: Any) -> None:
        pass

    def combined(self, python: Callable[..., Any], operands: tuple[NumberNode, ...]) -> NumberNode:
        """Returns the result of a function of numbers, one of which is this one.

        Raises:
            NumberNeeded: it raises, or returns something else than a number.
        """
        computes = [one.compute for one in operands]
        places = self.places.union(*(one.places for one in operands))

        def compute() -> Any:
            return python(*[one() for one in computes])

        try:
            value: Any = compute()
        except Exception:
            value = None
        length = 1 + sum(one._length if isinstance(one, PythonNode) else 1 for one in operands)
        plain = all(not one.is_number or _is_plain(one.compute()) for one in operands)
        node = PythonNode(compute, self.watch, places, value, length)
        if type(value) not in NUMBERS or not plain or length > _LONGEST:
            self.watch.give_up(node)
        if python not in _CERTAIN:
            self.watch.answers.append((_gives(compute, type(value)), True))
        return node


class RefusedNode(PythonNode):
    """The node of a number that code needs itself as soon as it uses it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.known = False

    @property
    def traced(self) -> Any:
        self.watch.give_up(self)

    @traced.setter
    def traced(self, value: Any) -> None:
        pass

    def combined(self, python: Callable[..., Any], operands: tuple[NumberNode, ...]) -> NumberNode:
        self.watch.give_up(self)


def _gives(compute: Callable[[], Any], kind: type) -> Callable[[], bool]:
    """Returns a function that returns True if a number can be computed, and has the same type."""

    def gives() -> bool:
        try:
            return type(compute()) is kind
        except Exception:
            return False

    return gives


def _is_plain(value: object) -> bool:
    return type(value) is bool or is_number(value)
