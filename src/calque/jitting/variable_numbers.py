"""Numbers in variables that differ between calls, alone or in tuples, and formulas of them: a rate
that is computed from a count of steps.

A program compares the numbers that code reads. If one has changed, the function is traced with a
traced number in its place (`calque.program.python_numbers`). Each call repeats what the function
has computed from it in Python, and comparisons with it are guarded, as are values that code needs
as plain numbers, for a text or an index. If it keeps them, as in the key of a dict, the number is
compared again.
"""

import itertools
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, NoReturn

import numpy as np
from torch.nn import Module

from calque.device.memory.cell import active
from calque.jitting.copied_counts import Counts
from calque.jitting.error_handlers import hides_errors, is_shadowed
from calque.jitting.number_flow import NumberNames
from calque.jitting.number_places import (
    GivenRow,
    Number,
    NumbersGuard,
    Variable,
    computing,
    given_among,
    is_known,
    is_traced,
)
from calque.jitting.number_questions import asks_for_types, asks_which, is_renamed, last_names
from calque.jitting.recording import TraceRecording
from calque.program.lifting import Lifting
from calque.program.number_errors import GivenNumberNeeded
from calque.program.python_numbers import Formula, RefusedNode
from calque.program.results import ComputedNumber
from calque.program.sources import NumberSource
from calque.program.tensor_methods import taking_numbers
from calque.program.traced_arrays import TracedArray
from calque.program.traced_functions import functions_in
from calque.program.traced_numbers import Comparisons, NumberNeeded, Place, TracedFloat
from calque.state import Row, Snapshot
from calque.state.numbers import (
    is_number,
    tuples_in,
    with_numbers,
)
from calque.state.ownership import Owner
from calque.state.stand_ins import standing_in

_TRIES = 3
"""The number of variables whose numbers code may need before none is traced."""


class VariableNumbers:
    """The variables of one trace that hold traced numbers.

    Args:
        lifting: the trace.
        counts: the counts of the trace, which also describe traced numbers.
        variables: the variables, in the rows of an earlier trace.
        kept_plain: variables whose numbers must be compared.

    Attributes:
        watch: the comparisons with the numbers.
    """

    def __init__(
        self,
        lifting: Lifting,
        counts: Counts,
        variables: Iterable[Variable] = (),
        kept_plain: Collection[Place] = (),
    ) -> None:
        self.watch: Comparisons = Comparisons()
        self.watch.new_input = partial(_new_input, lifting, itertools.count(1))
        self._formulas: list[Callable[[], Any]] = []
        found = [Number(row, key) for row, key in variables]
        found = [one for one in found if one.place not in kept_plain]
        self._all = [one for one in found if is_number(one.original)]
        self._arrays = [one for one in found if type(one.original) is np.ndarray]
        self._lifting = lifting
        counts.formula = self.described if self._all else None

    def __bool__(self) -> bool:
        return bool(self._all or self._arrays)

    @property
    def places(self) -> set[Place]:
        """The variables, as comparable values."""
        return {one.place for one in (*self._all, *self._arrays)}

    @property
    def variables(self) -> list[Variable]:
        """The variables that the trace has found."""
        found = [(one.found, one.key) for one in self._all if one.found is not None]
        return [(row, key) for row, key in found if not isinstance(row, GivenRow)]

    @contextmanager
    def installed(self, space: dict[str, Any]) -> Iterator[None]:
        """A context manager for the function's run, which puts traced numbers into the variables.

        Args:
            space: the function's global variables.
        """
        if not self:
            yield
            return
        for one in self._all:
            if one.traced is None:
                self._put(one)
        with standing_in(functions_in([space])), taking_numbers():
            yield

    def give(self, stand_ins: list[Any], snapshot: Snapshot) -> None:
        """Put traced numbers and arrays into the function's arguments."""
        for one in self._all:
            if one.is_given:
                self._put(one)
                stand_ins[one.key] = one.traced
        computations = self._lifting.host_computations
        for one in self._arrays:
            formula = computations.argument(one.key, one.original, self.give_up)
            given = one.original, formula, computations, self.give_up
            stand_ins[one.key] = TracedArray(*given)
            for held in (snapshot.rows, snapshot.known):  # unless the state has it, too
                held.pop(id(one.original), None)

    def refuse_given(self) -> None:
        """Raise `NumberNeeded` if any are arguments."""
        if self._arrays or any(one.is_given for one in self._all):
            self.give_up()

    def _put(self, one: Number) -> None:
        one.traced = one.stand_in(one.nodes(self.watch))
        one.row.put(one.key, one.traced)

    def take(self, stand_ins: list[Any]) -> None:
        """Release the arguments, which would keep the traced numbers alive."""
        for one in (*self._all, *self._arrays):
            if one.is_given:
                stand_ins[one.key] = one.original

    def rollback(self, rows: Iterable[Row]) -> None:
        """Restore the numbers after a failed trace, before the rows are restored."""
        for one in self._all:
            if one.traced is not None:
                one.traced = None
                one.row.put(one.key, one.original)
        self.watch.forget()
        self._repair(rows)

    def _repair(self, rows: Iterable[Row]) -> None:
        """Expect numbers in rows that have met traced ones."""
        for row in rows if self._all else ():
            for key, value in row.before.items():
                if is_traced(value):
                    row.before[key] = computing(value)()

    def settle(
        self, snapshot: Snapshot, given: Container[int] = ()
    ) -> list[tuple[Row, Any, Callable[[], Any]]]:
        """Restore the numbers in the variables after the function's run.

        Args:
            snapshot: the state of the trace.
            given: the ids of the containers among the arguments, which calls assign themselves.

        Returns:
            The assignments of each call: the row, the key, and a function that returns the number.

        Raises:
            NumberNeeded: code may tell traced numbers from others, or keeps them elsewhere.
        """
        if not self:
            return []
        self._find(snapshot)
        for one in tuples_in(tuple(one.traced for one in self._all)):
            snapshot.known.pop(id(one), None)
        found: list[tuple[Row, Any, Callable[[], Any]]] = []
        for one in self._all:
            now = one.row.get(one.key)
            if id(now) in given:
                continue
            if now is not one.traced:
                one.computed = self._repeated(now)
            elif one.found is not None and list(one.found.items()) != list(one.found.before):
                one.computed = one.read  # calls may assign all items of the row
            one.row.put(one.key, one.original)
        own = {(one.found, one.key): one.traced for one in self._all}
        rows = snapshot.rows.values()
        for row in rows:
            for key, value in row.before.items():
                if is_traced(value) and own.get((row, key)) is not value:
                    self.give_up()
        self._repair(rows)
        for one in self._all:
            one.traced = None
            if one.found is not None and one.computed is not None:
                found.append((one.found, one.key, one.computed))
        return found

    def _repeated(self, value: Any) -> Callable[[], Any]:
        plain = with_numbers(value, lambda one: 0 if is_known(one) else one)
        if not is_number(plain):
            self.give_up()
        return computing(value)

    def described(self, number: TracedFloat) -> ComputedNumber:
        """Returns the description of a traced number that each call stores or returns."""
        node = number.node
        if not (node.known and node.in_python):
            node.watch.give_up(node)
        self._formulas.append(node.compute)
        return ComputedNumber(len(self._formulas) - 1)

    def _find(self, snapshot: Snapshot) -> None:
        """Find the variables among the rows, and check what code ran."""
        rows = snapshot.rows.values()
        for one in self._all:
            if one.is_given:
                one.found = one.row
                continue
            found = [row for row in rows if one.is_in(row)]
            if len(found) > 1 or any(id(row.owner) in snapshot.weak for row in found):
                self.give_up()
            one.found = found[0] if found else None
            if not found and one.row.get(one.key) is not one.traced:
                self.give_up()
        self._check_codes(snapshot)

    def _check_codes(self, snapshot: Snapshot) -> None:
        codes = [code for code, owner in snapshot.codes.items() if owner >= Owner.PACKAGE]
        held = [(row, *item) for row in snapshot.rows.values() for item in row.before.items()]
        functions = [
            (name, function.__code__)
            for row, key, one in held
            if type(function := _function_of(one)) is FunctionType
            if function.__code__ in snapshot.codes
            for name in last_names((row.name(key),))
        ]
        found = *self._all, *self._arrays
        own = last_names(name for one in found for name in one.names)
        names = NumberNames(codes, own, functions)
        renamed = any(is_renamed(key, one) or is_shadowed(key, one) for _, key, one in held)
        if renamed or any(_tells_apart(code, names) for code in codes):
            self.give_up()

    @contextmanager
    def refused(self, snapshot: Snapshot) -> Iterator[None]:
        """A context manager for the backward pass of results, which may not read the variables.

        Raises:
            NumberNeeded: it reads one.
        """
        put: dict[int, tuple[Any, Number]] = {}
        try:
            for one in self._all:
                stand_in = one.stand_in(one.nodes(self.watch, RefusedNode))
                put[id(stand_in)] = stand_in, one
                one.row.put(one.key, stand_in)
            yield
        finally:
            for _, one in put.values():
                one.row.put(one.key, one.original)
            for row in snapshot.rows.values() if put else ():
                for key, value in row.before.items():
                    if id(value) in put:
                        row.before[key] = put[id(value)][1].original
        if self._all:
            self._check_codes(snapshot)

    def give_up(self) -> NoReturn:
        """Raise `NumberNeeded` for all variables."""
        raise NumberNeeded(self.places)

    def end(self, recording: TraceRecording) -> None:
        """Handle the end of the trace, after which numbers are read from their variables."""
        recording.numbers = tuple((one.row, one.key) for one in (*self._all, *self._arrays))
        recording.variables = tuple(self.variables)
        recording.formulas = self._formulas
        self._all = [one for one in self._all if one.found is not None]
        self._arrays.clear()
        for one in self._all:
            one.is_traced = False
        self.watch.forget()

    def guard(self) -> "NumbersGuard | None":
        """Returns the guard of the numbers' types and comparisons."""
        return NumbersGuard(self.watch, list(self._all)) if self._all else None


def _new_input(lifting: Lifting, indexes: Iterator[int], read: Callable[[], Any], key: str) -> Any:
    if active.trace is not lifting:  # in a branch or a loop, which has no inputs
        return None
    source = NumberSource(Formula(read, next(indexes)), key)
    return lifting.new_input(source, (), np.float64, weak=True)


def kept_after(
    error: NumberNeeded, kept_plain: frozenset[Place], numbers: Collection[Variable]
) -> frozenset[Place]:
    """Returns the variables whose numbers the next trace must not trace.

    Args:
        error: what a trace has raised.
        kept_plain: the variables whose numbers it did not trace.
        numbers: those whose numbers are read in each call, if possible.

    Raises:
        GivenNumberNeeded: some of them are arguments.
    """
    given = given_among(error.places, numbers)
    if given:
        raise GivenNumberNeeded(given) from None
    needed = kept_plain | error.places
    found = {Number(row, key).place for row, key in numbers}
    return needed | found if len(needed & found) >= _TRIES else needed


def globals_of(fn: Any) -> dict[str, Any]:
    """Returns the global variables of a function."""
    if isinstance(fn, Module):
        fn = type(fn).forward
    return fn.__globals__ if isinstance(fn, FunctionType | MethodType) else {}


def repeated(
    record: Callable[[tuple[Variable, ...]], TraceRecording],
    before: TraceRecording,
) -> TraceRecording:
    """Returns the recording of a trace with traced numbers in the same variables as in another.

    Args:
        record: traces the function, given the variables.
        before: the recording of the other trace.

    Raises:
        RuntimeError: it needs the numbers.
    """
    given = ((row, key) for row, key in before.numbers if isinstance(row, GivenRow))
    variables = (*before.variables, *given)
    try:
        recording = record(variables)
    except GivenNumberNeeded:
        raise RuntimeError(_DIFFERS) from None
    if len(recording.numbers) != len(variables):
        raise RuntimeError(_DIFFERS)
    return recording


_DIFFERS = (
    "calque.jit cannot take the derivative of these gradients: they depend on numbers in "
    "variables.\nTake the gradients and their derivatives inside the jitted function."
)


def _function_of(value: Any) -> Any:
    """Returns the function of a bound method or a partial."""
    while type(value) in (MethodType, partial):
        value = value.__func__ if type(value) is MethodType else value.func
    return value


def _tells_apart(code: CodeType, names: NumberNames) -> bool:
    """Returns True if code may tell traced numbers in variables from others."""
    met = names.of(code)
    return asks_for_types(code) or hides_errors(code, met, names.ran) or asks_which(code, met)
