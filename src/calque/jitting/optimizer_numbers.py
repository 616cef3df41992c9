"""The Python numbers of optimizers, which are traced in their steps.

Floats in param groups are inputs of the program. So are the numbers that other packages' optimizers
count or accumulate in param groups and state (`state["step"] += 1`): their new values are computed
in Python in each call, and assigned.
"""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from torch.optim import Optimizer

from calque.jitting.optimizer_states import states_of
from calque.program.lifting import Lifting
from calque.program.sources import NumberSource
from calque.program.traced_numbers import (
    Comparisons,
    NumberNeeded,
    Place,
    TracedFloat,
    input_number,
)
from calque.state import MISSING, Row, same_value

Group = dict[str, Any]


class HyperParameter:
    """A float in a param group, which is read in each call of the program."""

    __slots__ = ("group", "index", "key")

    def __init__(self, group: Group, key: str, index: int | None = None) -> None:
        self.group: Group = group
        self.key: str = key
        self.index: int | None = index

    def __call__(self) -> float:
        value = self.group[self.key]
        value = value if self.index is None else value[self.index]
        return float(value) if isinstance(value, np.floating) else value


class Counted:
    """A number in the states of some parameters that is the same for all of them.

    Attributes:
        rows: the rows of their states.
        key: the key of the number.
    """

    def __init__(self, key: str) -> None:
        self.rows: list[Row] = []
        self.key: str = key

    def __call__(self) -> Any:
        return self.rows[0].owner[self.key]

    def agree(self) -> bool:
        """Returns True if it is the same for all parameters, and has the same type as before."""
        first = self()
        return all(same_value(row.owner.get(self.key), first) for row in self.rows)


class TracedPlace:
    """A variable whose number is an input of the program.

    Attributes:
        holder: the dict.
        key: the key of the number.
        row: the row of the dict, if there is one.
        original: the number before the trace.
        current: the number now.
        traced: the traced number that represents it in a step.
        compute: returns the number after each call; None if it does not change.
    """

    __slots__ = ("compute", "current", "holder", "key", "original", "row", "traced")

    def __init__(self, holder: Group, key: str, row: Row | None, traced: Any) -> None:
        self.holder: Group = holder
        self.key: str = key
        self.row: Row | None = row
        self.original: Any = holder[key]
        self.current: Any = holder[key]
        self.traced: Any = traced
        self.compute: Callable[[], Any] | None = None

    @property
    def place(self) -> Place:
        """The dict and key, as a comparable value."""
        return id(self.holder), self.key

    def take_back(self, is_pytorchs: bool) -> bool:
        """Replace the traced number with a number; returns False if that is impossible."""
        value = self.holder.get(self.key, MISSING)
        if value is self.traced:
            self.holder[self.key] = self.current
            return True
        if is_pytorchs or type(value) not in (TracedFloat, int, float):
            self.holder[self.key] = self.current
            return False
        if type(value) is TracedFloat:
            compute = value.node.compute
            if not value.node.known:
                self.holder[self.key] = self.current
                return False
        else:
            compute = _constant(value)
        self.traced, self.compute, self.current = value, compute, compute()
        self.holder[self.key] = self.current
        return True


def _constant(value: object) -> Callable[[], Any]:
    return lambda: value


class OptimizerNumbers:
    """The numbers of optimizers in one trace.

    Args:
        lifting: the trace.
        watch: records the comparisons of its numbers.

    Attributes:
        keys: returns the keys of a param group, or of a parameter's state, whose numbers are
            traced.
        row_of: returns the row of a dict.
        whole: the variables of integers.
        counters: the rows of states from which numbers are read.
    """

    def __init__(self, lifting: Lifting, watch: Comparisons) -> None:
        self._lifting = lifting
        self._watch = watch
        self.keys: Callable[[Optimizer, Group, bool], Collection[str]] = lambda *_: ()
        self.row_of: Callable[[Any], Row | None] = lambda _: None
        self.whole: set[Place] = set()
        self.counters: list[Row] = []
        self._before: dict[int, tuple[Optimizer, Group, Collection[str]]] = {}
        self._places: dict[Place, TracedPlace] = {}
        self._now: list[TracedPlace] = []
        self._others: list[tuple[Group, dict[str, Any]]] = []
        self._shared: dict[Any, tuple[Counted, TracedFloat]] = {}
        self._tracing = True
        watch.new_input = self._new_input

    def prepare(self, optimizer: Optimizer) -> None:
        """Choose which numbers of an optimizer to trace, before any is traced."""
        for group in optimizer.param_groups:
            self._choose(optimizer, group, True)
        if not self._watch.is_pytorchs:
            for state in _states(optimizer):
                self._choose(optimizer, state, False)

    def _choose(self, optimizer: Optimizer, holder: Group, is_group: bool) -> None:
        if id(holder) not in self._before:
            self._before[id(holder)] = optimizer, holder, self.keys(optimizer, holder, is_group)

    def install(self, optimizer: Optimizer) -> None:
        """Replace the numbers of an optimizer with traced ones."""
        for group in optimizer.param_groups:
            self._install(group, True, optimizer)
        if not self._watch.is_pytorchs:
            for state in _states(optimizer):
                self._install(state, False, optimizer)
            holders = [*optimizer.param_groups, *_states(optimizer)]
            self._others = [(holder, _plain_numbers(holder)) for holder in holders]

    def _install(self, holder: Group, is_group: bool, optimizer: Optimizer) -> None:
        _, _, keys = self._before.get(id(holder), (None, None, ()))
        for key in [key for key in holder if key in keys]:  # the same order in every process
            place = self._places.get((id(holder), key))
            if place is None:
                make = self._of_group if is_group else self._of_state
                place = TracedPlace(holder, key, self.row_of(holder), make(holder, key, optimizer))
                self._places[place.place] = place
            elif not same_value(holder[key], place.current):
                continue  # changed by the function; see `check`
            holder[key] = place.traced
            self._now.append(place)

    def _of_group(self, group: Group, key: str, optimizer: Optimizer) -> Any:
        value = group[key]
        if type(value) is tuple:
            return tuple(self._number(HyperParameter(group, key, i)) for i in range(len(value)))
        if type(value) is int:
            self.whole.add((id(group), key))
        return self._number(HyperParameter(group, key))

    def _number(self, read: HyperParameter) -> TracedFloat:
        return self._input(read, read.key, read(), (id(read.group), read.key))

    def _of_state(self, state: Group, key: str, optimizer: Optimizer) -> TracedFloat:
        value, row = state[key], self.row_of(state)
        assert row is not None
        self.counters.append(row)
        shared = (id(optimizer), key, value) if type(value) is int else (id(state), key)
        if shared not in self._shared:
            counted = Counted(key)
            self._shared[shared] = counted, self._input(counted, key, value, (id(state), key))
            self._watch.answers.append((counted.agree, True))
        counted, number = self._shared[shared]
        counted.rows.append(row)
        return number

    def _input(self, read: Callable[[], Any], key: str, value: object, place: Place) -> TracedFloat:
        traced = self._new_input(read, key)

        def compute() -> Any:
            return value if self._tracing else read()

        return input_number(traced, compute, self._watch, place, type(value) is int)

    def _new_input(self, read: Callable[[], Any], key: str) -> Any:
        return self._lifting.new_input(NumberSource(read, key), (), np.float64, weak=True)

    def assigned(self, optimizer: Optimizer) -> set[str]:
        """Returns the keys of numbers that are not traced but that the step has assigned."""
        before = {id(holder): numbers for holder, numbers in self._others}
        self._others = []
        found: set[str] = set()
        for holder in (*optimizer.param_groups, *_states(optimizer)):
            numbers = before.get(id(holder), {})
            now = _plain_numbers(holder).items()
            found |= {k for k, v in now if not same_value(numbers.get(k, MISSING), v)}
        return found

    def traced_now(self) -> set[Place]:
        """Returns the variables that hold traced numbers."""
        return {place.place for place in self._now}

    def take_back(self) -> set[Place]:
        """Restore numbers in all variables; returns those to which the step assigned values that a
        program cannot compute.
        """
        now, self._now = self._now, []
        is_pytorchs = self._watch.is_pytorchs
        return {place.place for place in reversed(now) if not place.take_back(is_pytorchs)}

    def changed(self, by_scheduler: bool) -> tuple[Optimizer, str] | None:
        """Returns the first number that a scheduler has changed outside the steps.

        Args:
            by_scheduler: whether a scheduler has stepped.

        Raises:
            NumberNeeded: a step assigns it too, or other code than a scheduler does.
        """
        for place in self._places.values():
            if same_value(place.holder.get(place.key, MISSING), place.current):
                continue
            if not by_scheduler or place.compute is not None or type(place.current) is int:
                raise NumberNeeded({place.place})
            return self._before[id(place.holder)][0], place.key
        return None

    def settle(self) -> list[tuple[Row, Any, Callable[[], Any]]]:
        """Restore the numbers from before the trace.

        Returns:
            The assignments of each call: the row, the key, and a function that returns the number.
        """
        found: list[tuple[Row, Any, Callable[[], Any]]] = []
        for place in self._places.values():
            place.holder[place.key] = place.original
            if place.compute is not None:
                assert place.row is not None
                found.append((place.row, place.key, place.compute))
        self._places.clear()
        self._shared.clear()
        self._before.clear()
        return found

    def rollback(self) -> None:
        """Restore the numbers after a failed trace."""
        for place in self._places.values():
            if place.holder.get(place.key, MISSING) is not place.original:
                place.holder[place.key] = place.original

    def end(self) -> None:
        """Handle the end of the trace, after which numbers are read from their variables."""
        self._tracing = False


def _plain_numbers(holder: Group) -> dict[str, Any]:
    numbers = (int, float)
    return {k: v for k, v in holder.items() if isinstance(k, str) and type(v) in numbers}


def _states(optimizer: Optimizer) -> list[Any]:
    """Returns the state of each parameter, and other dicts in an optimizer's `state`."""
    return [*(state for _, state in states_of(optimizer)), optimizer.state]
