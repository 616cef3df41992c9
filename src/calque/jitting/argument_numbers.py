"""Numbers among a function's arguments that differ between calls, such as a weight or a step.

A program compares the numbers that it is given. If one of them has changed, the function is traced
with a traced number in its place, as for numbers in variables (`variable_numbers`), and programs
for other numbers of the same type serve the call. Where code needs the number itself, it is
compared again.
"""

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
from torch.nn import Module

from calque.jitting.copied_counts import Counts
from calque.jitting.number_places import Given, GivenRow, Variable
from calque.jitting.recording import TraceRecording
from calque.program import trees
from calque.program.function_arguments import CALLED
from calque.program.number_errors import GivenNumberNeeded
from calque.program.signature import Varying
from calque.program.structures import can_open
from calque.state.numbers import NUMBERS
from calque.state.rows import slots_of
from calque.state.values import instance_dict

Record = Callable[[tuple[Variable, ...], list[Counts]], TraceRecording]


class ArgumentNumbers:
    """The arguments of a jitted function whose numbers differ between calls.

    Args:
        fn: the function.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._places: dict[Any, dict[int, tuple[str, ...]]] = {}  # the names, by structure
        self._refused: set[tuple[Any, int]] = set()
        self._given: Given = Given()

    def keyed(self, spec: Any, keys: list[Any]) -> list[Any]:
        """Returns the parts of a signature, without the numbers that differ between calls."""
        places = self._places.get(spec, ()) if self._places else ()
        for index in places:
            key = keys[index]
            if type(key) is tuple and key[0] in _VARYING:
                keys[index] = Varying(key if key[0] in NUMBERS else (*key[:-1], b""))
        return keys

    def learn(self, known: Sequence[Any], key: Any) -> None:
        """Record the numbers that differ from those of the last call with such arguments.

        Args:
            known: the signatures of earlier calls that were traced or observed.
            key: the signature of a call.

        Raises:
            GivenNumberNeeded: there are new ones, without which the signature is another.
        """
        spec = key[0]
        like = [one for one in reversed(known) if one[0] == spec and type(one[0]) is type(spec)]
        found = [
            index
            for index, now in enumerate(key[3:])
            if type(now) is tuple and now[0] in _VARYING and (spec, index) not in self._refused
            if any(_varies(one[3 + index], now) for one in like[: 1 if now[0] in NUMBERS else None])
        ]
        names = dict(_names(self._fn, spec, len(key) - 3)) if found else {}
        new = {index: names[index] for index in found if names.get(index)}
        if new:
            self._places[spec] = self._places.get(spec, {}) | new
            raise GivenNumberNeeded(set())

    def fill(self, spec: Any, leaves: list[Any]) -> None:
        """Make the numbers of a call those that programs read."""
        if self._places:
            places = self._places.get(spec, ())
            found = ((i, leaves[i]) for i in places if type(leaves[i]) in _VARYING)
            self._given.numbers.update(found)

    def variables(self, spec: Any, leaves: list[Any]) -> tuple[Variable, ...]:
        """Returns the places of a call's numbers."""
        self.fill(spec, leaves)
        places = self._places.get(spec, {})
        row = GivenRow(self._given, places)
        return tuple((row, index) for index in places if type(leaves[index]) in _VARYING)

    def recorded(self, record: Record, spec: Any, leaves: list[Any]) -> TraceRecording:
        """Returns the recording of a trace with traced numbers as arguments.

        Args:
            record: traces the function, and adds the counts of each trace to a list.
            spec, leaves: the arguments.

        Raises:
            GivenNumberNeeded: the function needs the numbers themselves.
        """
        variables, seen = self.variables(spec, leaves), list[Counts]()
        needed = {index for _, index in variables}
        try:
            return record(variables, seen)
        except GivenNumberNeeded as error:
            needed = error.indexes
        except Exception:
            if not variables or any(counts.lost for counts in seen):
                raise
        recording = record((), seen)  # raises the function's own errors
        self._refuse(spec, needed)
        if recording.unrepeatable or recording.survivors:  # it serves this call only
            return recording
        raise GivenNumberNeeded(needed)

    def _refuse(self, spec: Any, indexes: set[int]) -> None:
        self._refused |= {(spec, index) for index in indexes}
        left = {i: n for i, n in self._places[spec].items() if i not in indexes}
        self._places[spec] = left
        if not left:
            del self._places[spec]


def _names(fn: Any, spec: Any, count: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yields the leaves of a call's arguments, with their paths and the names of parameters."""
    args, kwargs = trees.unflatten(list(range(count)), spec)
    if isinstance(fn, Module) and _has_hooks(fn):  # which are given the arguments, too
        return
    known = list(_parameters(fn))
    given = [(one, {_name(each, i) for each in known}) for i, one in enumerate(args)]
    given += [(one, {name}) for name, one in kwargs.items()]
    for one, names in given:
        if None not in names:
            for index, path in _leaves(one, ""):
                first, *others = sorted(map(str, names))
                yield index, (f"{first}{path}", first, *others)


def _leaves(tree: Any, path: str, depth: int = 0) -> Iterator[tuple[int, str]]:
    """Yields the leaves of a container, with their paths."""
    kind = type(tree)
    if kind is int:
        yield tree, path
    elif depth < _DEEPEST and kind in _DICTS:
        for key, one in tree.items():
            yield from _leaves(one, f"{path}[{key!r}]", depth + 1)
    elif depth < _DEEPEST and (kind in (list, tuple) or _is_named_tuple(kind)):
        names = [f".{name}" for name in kind._fields] if _is_named_tuple(kind) else None
        for index, one in enumerate(tree):
            yield from _leaves(one, path + (names[index] if names else f"[{index}]"), depth + 1)
    elif depth < _DEEPEST and kind in CALLED:
        for name, one in _held_by(tree):
            yield from _leaves(one, f"{path}.{name}", depth + 1)
    elif depth < _DEEPEST and can_open(kind):
        slots = {s: getattr(tree, s) for s in slots_of(kind) if hasattr(tree, s)}
        for name, one in ((instance_dict(tree) or {}) | slots).items():
            yield from _leaves(one, f"{path}.{name}", depth + 1)


def _held_by(function: Any) -> Iterator[tuple[str, Any]]:
    """Yields the variables that a function closes over, its default values, and the arguments of a
    partial one, with their names.
    """
    if isinstance(function, partial):
        called: Any = function.func
        yield "func", called
        code = called.__code__ if type(called) is FunctionType else None
        known = code.co_varnames[: code.co_argcount] if code else ()
        yield from zip(known, function.args, strict=False)
        yield from function.keywords.items()
        return
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    cells = function.__closure__ or ()
    yield from ((n, cell.cell_contents) for n, cell in zip(code.co_freevars, cells, strict=True))
    yield from zip(names[len(names) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _has_hooks(module: Module) -> bool:
    return bool(module._forward_pre_hooks or module._forward_hooks)


def _parameters(fn: Any) -> Iterator[list[inspect.Parameter]]:
    """Yields the parameters of a function, and of those that it wraps."""
    one = fn.forward if isinstance(fn, Module) else fn
    while one is not None:
        try:
            yield list(inspect.signature(one, follow_wrapped=False).parameters.values())
        except (TypeError, ValueError):
            yield []
        one = getattr(one, "__wrapped__", None)


def _name(parameters: list[inspect.Parameter], place: int) -> str | None:
    """Returns the name of the parameter to which an argument is passed; None if it is unknown."""
    by_place = [one for one in parameters if one.kind in _BY_PLACE]
    if place < len(by_place):
        return by_place[place].name
    rest = (one.name for one in parameters if one.kind is inspect.Parameter.VAR_POSITIONAL)
    return next(rest, None)


def _varies(before: Any, now: Any) -> bool:
    """Returns True for keys that differ by the values of a number or array."""
    return type(before) is tuple and before != now and before[:-1] == now[:-1]


_VARYING = NUMBERS | {np.ndarray}
_DICTS = (dict, OrderedDict, defaultdict)
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_DEEPEST = 4
"""The nesting of containers, below which numbers are compared."""
