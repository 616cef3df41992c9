"""The comparisons that a program makes with traced numbers, which each call repeats as guards."""

import operator
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from calque.program.number_errors import NumberNeeded, Place, turned_into_float

if TYPE_CHECKING:
    from calque.program.number_nodes import NumberNode

_MOST = 2**53
"""The greatest whole number that float64 represents exactly in a program."""


def _no_input(compute: Callable[[], Any], name: str) -> Any:
    raise NotImplementedError


class Comparisons:
    """The comparisons made with traced numbers, for the guards of a program.

    Attributes:
        answers: functions that repeat a comparison, with the results in the trace.
        stepping: the name of the optimizer whose step is running, whose numbers are traced.
        is_pytorchs: whether that optimizer is PyTorch's own.
        needed: the origins of the numbers that code needed as plain numbers.
        has_read: whether the step has read numbers from tensors.
        new_input: creates an input, given a function that returns the number in each call, and a
            name.
    """

    def __init__(self) -> None:
        self.answers: list[tuple[Callable[[], bool], bool]] = []
        self.stepping: str | None = None
        self.is_pytorchs: bool = False
        self.needed: set[Place] = set()
        self.has_read: bool = False
        self.new_input: Callable[[Callable[[], Any], str], Any] = _no_input
        self._pins: list[Callable[[], bool]] = []
        self._nodes: dict[Any, NumberNode] = {}
        self._answered: dict[Any, bool] = {}
        self._made: list[weakref.ref[Any]] = []
        self._kept: list[NumberNode] = []

    def holds(self) -> bool:
        """Returns True if every comparison would have the same result."""
        return all(ask() == answer for ask, answer in self.answers)

    def pin(self, is_same: Callable[[], bool]) -> None:
        """Guard a number that code needs itself."""
        self._pins.append(is_same)
        self.answers.append((is_same, True))

    def has_changed(self) -> bool:
        """Returns True if a number that code needs itself has changed."""
        return not all(is_same() for is_same in self._pins)

    def made(self, number: Any) -> None:
        """Record a new number."""
        self._made.append(weakref.ref(number))

    def keep(self, node: "NumberNode") -> None:
        """Keep a number until the end of the trace."""
        self._kept.append(node)

    def alive(self) -> "list[NumberNode]":
        """Returns the nodes of the numbers that are still alive."""
        self._nodes.clear()
        found = [number for ref in self._made if (number := ref()) is not None]
        return [one.node if isinstance(one, torch.SymFloat) else one for one in found]

    def give_up(self, node: "NumberNode") -> NoReturn:
        """Handle code that needs a concrete number.

        Raises:
            NumberNeeded: it is a Python number.
            TraceError: it is the value of a tensor.
        """
        if not node.places:
            raise turned_into_float(self.stepping)
        self.needed |= node.places
        raise NumberNeeded(node.places)

    def require_exact(self, node: "NumberNode") -> None:
        """Guard that a number can be computed, with the same value in the program and in Python.

        Raises:
            NumberNeeded: it is an integer that float64 may not represent, or computing it raises.
        """
        compute = node.compute

        def is_exact() -> bool:
            try:
                value = compute()
            except (OverflowError, ValueError):
                return False
            return type(value) is not int or -_MOST <= value <= _MOST

        if not is_exact():
            self.give_up(node)
        self.answers.append((is_exact, True))

    def ask_of(self, question: Callable[[Any], bool], node: "NumberNode") -> bool:
        """Answer a question about a number, and guard the answer."""
        if not node.known:
            self.give_up(node)
        compute = node.compute
        answer = question(compute())
        self.answers.append((lambda: question(compute()) == answer, True))
        return answer

    def ask(self, name: str, a: "NumberNode", b: "NumberNode") -> bool:
        """Answer a comparison, and guard the answer."""
        for node in (a, b):
            if not node.known and node.places:
                self.give_up(node)
        for node in (a, b):
            if node.in_python and node.watch is not self:
                return node.watch.ask(name, a, b)
        key = name, a.key, b.key
        if key in self._answered:
            return self._answered[key]
        compare, compute_a, compute_b = getattr(operator, name), a.compute, b.compute

        def ask() -> bool:  # NumPy's comparisons return its own bool
            return compare(compute_a(), compute_b())

        self.answers.append((ask, answer := ask()))
        self._answered[key] = answer
        return answer

    def node(self, key: Any, make: "Callable[[], NumberNode]") -> "NumberNode":
        """Returns the node of an operation, which is computed once."""
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = make()
        return found

    def forget(self) -> None:
        """Release all references to the trace, except the answers."""
        self._nodes.clear()
        self._answered.clear()
        self._made.clear()
        self._kept.clear()
