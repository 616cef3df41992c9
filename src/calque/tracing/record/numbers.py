"""Numbers that a program reads from tensors and passes only to PyTorch functions.

A graph reads these again, and computes with the new values. The source tells where a number is used
(`calque.tracing.record.number_uses`), and the run must confirm it: each such place must have been
one call of PyTorch with that number among its arguments. All other numbers are guards.
"""

import copy
import inspect
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

from calque.tracing.core.origins import is_engine
from calque.tracing.core.statements import Place
from calque.tracing.graph.value_guards import same_answer
from calque.tracing.record.escapes import Escape
from calque.tracing.record.events import Event, RecordedCall
from calque.tracing.record.number_formulas import Formula, NumberUse, NumberUses, Use
from calque.tracing.record.number_uses import READS, reach_of
from calque.tracing.record.values import RunValue

NUMBER = "number"
"""The mark of a call that computes with numbers (`RecordedCall.what`)."""

_POINTWISE = frozenset(
    (
        *("clamp", "clamp_", "clip", "clip_", "full_like", "masked_fill", "masked_fill_", "fill_"),
        *("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "pow", "pow_", "where"),
    )
)
"""Functions whose results have the same shape for any number."""


class Number:
    """A number that the program has read.

    Attributes:
        call: the call that read it.
        escape: its entry in the recording's `escapes`.
        value: the number.
        pending: the source positions at which it must still be used.
        lost: whether it was used in a way that its function's source does not show.
    """

    def __init__(self, call: RecordedCall, escape: Escape, pending: set[Place]) -> None:
        self.call: RecordedCall = call
        self.escape: Escape = escape
        self.value: Any = escape.value
        self.pending: set[Place] = pending
        self.lost = False


class NumberArgument(NamedTuple):
    """A number among the arguments of a call.

    Attributes:
        key: the index of a positional argument, or the name.
        path: its position in the argument.
        formula, numbers: how it is computed, and from which numbers.
    """

    key: int | str
    path: tuple[int | str, ...]
    formula: Formula
    numbers: dict[Place, Number]


class RunNumbers:
    """Follows the numbers of a run.

    Attributes:
        all: the numbers so far that may be followed.
        used: the calls that take them as arguments.
    """

    def __init__(self) -> None:
        self.all: list[Number] = []
        self.used: list[tuple[RecordedCall, list[NumberArgument]]] = []
        self._read: dict[tuple[int, CodeType], dict[Place, Number]] = {}

    def read(self, call: RecordedCall, escape: Escape) -> None:
        """Record that the program reads a number."""
        if call.name not in READS or type(escape.value) not in (int, float):
            return
        frame = _caller(None)
        reach = _reach(frame) if frame is not None else None
        place = _place(frame.f_code, frame.f_lasti) if frame is not None else None
        if frame is None or reach is None or place not in reach.reads:
            return
        number = Number(call, escape, set(reach.reads[place]))
        self.all.append(number)
        self._read.setdefault((id(frame), frame.f_code), {})[place] = number

    def use(self, call: RecordedCall, func: object) -> bool:
        """Record that the program calls a PyTorch function.

        Returns:
            True if the shape of its result may depend on a number that is followed.
        """
        frame = _caller(func) if self._read else None
        known = self._read.get((id(frame), frame.f_code)) if frame is not None else None
        if frame is None or known is None:
            return False
        reach, place = _reach(frame), _place(frame.f_code, frame.f_lasti)
        site = reach.sites.get(place) if reach is not None and place is not None else None
        if site is None or place is None or site.name not in ("", call.name):
            return False
        arguments = [_argument(call, func, site, use, known) for use in site.uses]
        read = set().union(*(use.formula.reads() for use in site.uses))
        numbers = [known[each] for each in read if each in known]
        found = [argument for argument in arguments if argument is not None]
        if len(found) < len(site.uses) or any(place not in n.pending for n in numbers):
            for number in numbers:
                number.lost = True
            return False
        for number in numbers:
            number.pending.discard(place)
        self.used.append((call, found))
        return not (call.name in _POINTWISE or (not site.name and call.name != "__getitem__"))

    def given(self, call: RecordedCall) -> None:
        """Handle the return of a call that may take numbers, on which only tensors may depend."""
        if self.used and self.used[-1][0] is call and not _is_of_values(call.result):
            for argument in self.used[-1][1]:
                for number in argument.numbers.values():
                    number.lost = True

    def followed(self) -> set[Number]:
        """Returns the numbers whose uses in the run are exactly those in the source."""
        good = {number for number in self.all if not number.lost and not number.pending}
        while True:
            together = [
                {number for argument in arguments for number in argument.numbers.values()}
                for _, arguments in self.used
            ]
            bad = set().union(*(group for group in together if not group <= good))
            if good.isdisjoint(bad):
                return good
            good -= bad

    def following(self, events: list[Event]) -> list[Event]:
        """Returns the events of a graph that reads the numbers again."""
        good = self.followed()
        if not good:
            return events
        values = {number: RunValue() for number in good}
        reads = {number.call: number for number in good}
        uses = {
            call: arguments
            for call, arguments in self.used
            if all(n in good for argument in arguments for n in argument.numbers.values())
        }
        made: list[Event] = []
        for event in events:
            if isinstance(event, RecordedCall) and event in reads:
                changed = copy.copy(event)
                changed.result, changed.reads = values[reads[event]], ()
                event = changed
            elif isinstance(event, RecordedCall) and event in uses:
                changed = copy.copy(event)
                for argument in uses[event]:
                    value = _computed(argument, argument.formula, values, event, made)
                    _put(changed, argument, value)
                event = changed
            made.append(event)
        return made


def _computed(
    argument: NumberArgument,
    formula: Any,
    values: dict[Number, RunValue],
    at: RecordedCall,
    made: list[Event],
) -> Any:
    """Returns the value of a formula, after the calls that compute it."""
    if formula.read is not None:
        return values[argument.numbers[formula.read]]
    if formula.function is None:
        return formula.parts[0]
    parts = tuple(_computed(argument, part, values, at, made) for part in formula.parts)
    call = RecordedCall(formula.function, parts, {}, at.module, at.place)
    call.result, call.what = RunValue(), NUMBER
    made.append(call)
    return call.result


def _put(call: RecordedCall, argument: NumberArgument, value: object) -> None:
    if isinstance(argument.key, str):
        old = call.kwargs[argument.key]
        call.kwargs = {**call.kwargs, argument.key: _with(old, argument.path, value)}
        return
    args = list(call.args)
    args[argument.key] = _with(args[argument.key], argument.path, value)
    call.args = tuple(args)


def _with(given: Any, path: tuple[int | str, ...], value: Any) -> Any:
    """Returns an argument in which the value at one position is replaced."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(given, slice):
        parts = {name: getattr(given, name) for name in ("start", "stop", "step")}
        parts[str(step)] = _with(parts[str(step)], rest, value)
        return slice(*parts.values())
    items = list(given)
    items[int(step)] = _with(items[int(step)], rest, value)
    return type(given)(items)


def _argument(
    call: RecordedCall, func: object, site: NumberUse, use: Use, known: dict[Place, Number]
) -> NumberArgument | None:
    """Returns the argument that a number was passed as; None if it is not found."""
    numbers = {place: known[place] for place in use.formula.reads() if place in known}
    if len(numbers) < len(use.formula.reads()):
        return None
    for key in _keys(call, func, site, use.position):
        try:
            given: Any = call.kwargs[key] if isinstance(key, str) else call.args[key]
            for step in use.path:
                given = getattr(given, step) if isinstance(step, str) else given[step]
            expected = _value(use.formula, numbers)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return None
        return (
            NumberArgument(key, use.path, use.formula, numbers)
            if same_answer(given, expected)
            else None
        )
    return None


def _keys(
    call: RecordedCall, func: object, site: NumberUse, position: int | str
) -> Iterator[int | str]:
    """Returns the keys of an argument in the call, given its position in the source."""
    if isinstance(position, str):
        if position in call.kwargs:
            yield position
        elif position in (names := _names(func)):
            yield names.index(position)
    elif not site.name or len(call.args) == site.count:
        yield position
    elif len(call.args) == site.count + 1:  # a method, whose first argument is the tensor
        yield position + 1
    elif position < len(names := _names(func)) and names[position] in call.kwargs:
        yield names[position]


@lru_cache(maxsize=1024)
def _names(func: Any) -> list[str]:
    """Returns the names of a function's parameters; none if Python does not know them."""
    try:
        return list(inspect.signature(func).parameters)
    except (TypeError, ValueError):
        return []


def _value(formula: Formula, numbers: dict[Place, Number]) -> Any:
    if formula.read is not None:
        return numbers[formula.read].value
    if formula.function is None:
        return formula.parts[0]
    return formula.function(*(_value(part, numbers) for part in formula.parts))


def _is_of_values(result: object) -> bool:
    """Returns True if a result contains only tensors, or is None."""
    if isinstance(result, (tuple, list)):
        return all(map(_is_of_values, result))
    return result is None or (type(result) is RunValue and result.looks is not None)


# Frames


def _caller(func: object) -> FrameType | None:
    """Returns the frame of the program that calls PyTorch, directly or through the Python function
    `func`.

    None if other code makes the call, because that code has the number too.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "__torch_function__":
        frame = frame.f_back
    inner, frame = frame, frame.f_back if frame is not None else None
    while frame is not None and not _is_programs(frame.f_code):
        inner, frame = frame, frame.f_back
    if frame is None or inner is None:
        return None
    own = getattr(func, "__code__", None)
    direct = inner.f_code.co_name == "__torch_function__" or inner.f_code is own
    return frame if direct else None


def _is_programs(code: CodeType) -> bool:
    return code.co_filename.startswith("<eval_with_key>") or not is_engine(code.co_filename)


def _reach(frame: FrameType) -> NumberUses | None:
    reach = reach_of(frame.f_code)
    if reach is None:
        return None
    for name, meaning in reach.names.items():
        found = frame.f_globals.get(name, frame.f_builtins.get(name))
        if found is not meaning:
            return None
    return reach


def _place(code: CodeType, at: int) -> Place | None:
    """Returns the source position of an instruction, or of the inline cache after a call."""
    first, last, start, end = _positions(code)[at // 2]
    if first is None or last is None or start is None or end is None:
        return None
    return (first, start), (last, end)


@lru_cache(maxsize=256)
def _positions(code: CodeType) -> list[tuple[int | None, ...]]:
    return list(code.co_positions())
