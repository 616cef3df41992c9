"""Passes numbers in the state that are equal, and stay equal, to a program only once.

Adam counts the steps of each parameter, and all of these counts are equal. Starting a program takes
longer with every array that it takes or returns. So if several cells of one element hold the same
array, and a program computes the same from it for all of them, the array is passed once, and its
new value is stored in all cells.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import attrgetter, is_, itemgetter
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from calque.device.memory.cell import Cell, swap
from calque.device.runtime import threads
from calque.program.direct_call import Direct
from calque.program.jaxprs import build, live
from calque.program.lifting import Input
from calque.program.sinks import CellSink, Sink
from calque.program.sources import CellSource

_LONGEST = 256
"""The maximum number of equations between such state and its new value."""
_array = attrgetter("array")
_apart: WeakSet[Cell] = WeakSet()
"""State that turned out not to stay equal; a program for each variant of it would be too many."""


class Equal(NamedTuple):
    """The equal inputs and outputs of a program.

    Attributes:
        groups: the indexes of the inputs that share an array.
        inputs: the indexes of the inputs that are passed.
        outputs: for each output, its index among the outputs of the program.
    """

    groups: list[list[int]]
    inputs: list[int]
    outputs: list[int]

    @property
    def members(self) -> set[int]:
        """The inputs that share an array."""
        return {index for group in self.groups for index in group}

    def position(self, index: int) -> int:
        """Returns the index of an input among those that are passed."""
        return self.inputs.index(index)

    @property
    def give(self) -> Any:
        """Returns a function that expands the program's outputs to all outputs."""
        return itemgetter(*self.outputs)

    def shortened(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """Returns a jaxpr with only the inputs that are passed, and each output once."""
        inner = closed.jaxpr
        stands_for: dict[Any, Any] = {}
        for group in self.groups:
            for index in group[1:]:
                stands_for[inner.invars[index]] = inner.invars[group[0]]

        def place(value: Any) -> Any:
            return value if isinstance(value, Literal) else stands_for.get(value, value)

        equations = [
            one.replace(invars=list(map(place, one.invars)))
            if any(not isinstance(v, Literal) and v in stands_for for v in one.invars)
            else one
            for one in inner.eqns
        ]
        first = {place_: index for index, place_ in reversed(list(enumerate(self.outputs)))}
        outputs = [place(inner.outvars[first[index]]) for index in range(len(first))]
        inputs = [inner.invars[index] for index in self.inputs]
        return build(closed, inputs, outputs, live(equations, outputs))

    def apart(self, program: Direct) -> Direct:
        """Wraps a program of the shortened jaxpr to take all inputs and return all outputs; `bare`
        is unchanged.
        """
        take, give = itemgetter(*self.inputs), self.give

        def call(arrays: list[Any]) -> list[Any]:
            return [*give(program.call([*_listed(take(arrays), self.inputs)]))]

        def start(arrays: list[Any]) -> Any:
            return map(list, map(give, program.start([*_listed(take(arrays), self.inputs)])))

        return Direct(call, start, program.bare)


def _listed(taken: object, indexes: list[int]) -> Any:
    return taken if len(indexes) > 1 else (taken,)


def equal_state(
    closed: ClosedJaxpr, inputs: Sequence[Input], sinks: Sequence[Sink]
) -> Equal | None:
    """Returns the equal inputs and outputs of a program; None if there are none.

    Args:
        closed: the program.
        inputs: its inputs.
        sinks: the sinks of its first outputs.
    """
    written = Counter(sink.memory for sink in sinks)
    targets = {s.cell: i for i, s in enumerate(sinks) if isinstance(s, CellSink)}
    held: dict[int, list[int]] = defaultdict(list)  # by the id of the array
    results: dict[int, int] = {}
    for index, one in enumerate(inputs):
        cell = one.source.cell if isinstance(one.source, CellSource) else None
        if cell not in targets or cell in _apart:
            continue
        if written[cell] == 1 and _is_single(closed.jaxpr.invars[index]):
            held[id(cell.array)].append(index)
            results[index] = targets[cell]
    groups = _refined(closed, [group for group in held.values() if len(group) > 1], results)
    if not groups:
        return None
    dropped = {index for group in groups for index in group[1:]}
    first = {results[index]: results[group[0]] for group in groups for index in group}
    count = len(closed.jaxpr.outvars)
    given = [index for index in range(count) if first.get(index, index) == index]
    places = {index: place for place, index in enumerate(given)}
    outputs = [places[first.get(index, index)] for index in range(count)]
    return Equal(groups, [i for i in range(len(inputs)) if i not in dropped], outputs)


def _refined(
    closed: ClosedJaxpr, groups: list[list[int]], results: dict[int, int]
) -> list[list[int]]:
    """Splits groups of inputs so that the inputs of a group have equal new values.

    Args:
        closed: the program.
        groups: groups of inputs with equal values.
        results: for each input, by index, the output that is its new value.
    """
    while groups:
        values = _Values(closed, groups)
        found: list[list[int]] = []
        for group in groups:
            parts: dict[Any, list[int]] = defaultdict(list)
            for index in group:
                parts[values.result(results[index])].append(index)
            found += [part for part in parts.values() if len(part) > 1]
        if found == groups:
            break
        groups = found
    return groups


def _is_single(variable: Any) -> bool:
    """Returns True if a value of a jaxpr is an array of one element."""
    return all(size == 1 for size in getattr(variable.aval, "shape", (0,)))


class _Scope(NamedTuple):
    """A call of a jaxpr.

    Attributes:
        makers: for each variable, the equation that computes it, and the index of the result.
        given: for each input variable, its value outside: a number, or a value in another scope.
        known: the numbers of the variables so far.
        inner: the scopes of the calls in it, by the id of the equation.
    """

    makers: dict[Any, tuple[Any, int]]
    given: dict[Any, Any]
    known: dict[Any, int]
    inner: dict[int, "_Scope"]


def _scope(jaxpr: Any, given: dict[Any, Any]) -> _Scope:
    makers = {v: (one, i) for one in jaxpr.eqns for i, v in enumerate(one.outvars)}
    return _Scope(makers, given, {}, {})


class _Values:
    """Numbers the values of a program such that equal numbers are computed in the same way.

    Args:
        closed: the program.
        groups: groups of the indexes of inputs with equal values.
    """

    def __init__(self, closed: ClosedJaxpr, groups: list[list[int]]) -> None:
        first = {index: group[0] for group in groups for index in group}
        given = {v: ("input", first.get(i, i)) for i, v in enumerate(closed.jaxpr.invars)}
        given |= {v: ("constant", i) for i, v in enumerate(closed.jaxpr.constvars)}
        self._numbers: dict[Any, int] = {}
        self._outputs: list[Any] = closed.jaxpr.outvars
        self._top = _scope(closed.jaxpr, {v: self._number(key) for v, key in given.items()})
        self._left = 0

    def result(self, index: int) -> int:
        """Returns the number of an output."""
        self._left = _LONGEST
        return self._of(self._outputs[index], self._top)

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _of(self, value: Any, scope: _Scope) -> int:
        if isinstance(value, Literal):
            number = np.asarray(value.val)
            return self._number(("literal", str(value.aval), number.tobytes()))
        found = scope.known.get(value)
        if found is None:
            found = scope.known[value] = self._found(value, scope)
        return found

    def _found(self, value: object, scope: _Scope) -> int:
        outside = scope.given.get(value)
        if type(outside) is int:
            return outside
        if outside is not None:
            return self._of(*outside)
        self._left -= 1
        equation, place = scope.makers[value]
        alone = ("other", id(value), id(scope))
        if self._left < 0 or equation.effects or not _is_single(value):
            return self._number(alone)
        inner = equation.params.get("jaxpr")
        if equation.primitive.name in ("jit", "pjit") and isinstance(inner, ClosedJaxpr):
            return self._of(inner.jaxpr.outvars[place], self._inner(equation, inner, scope))
        try:
            key = equation.primitive, tuple(sorted(equation.params.items())), place
            hash(key)
        except TypeError:
            return self._number(alone)
        return self._number((key, *(self._of(v, scope) for v in equation.invars)))

    def _inner(self, equation: Any, closed: ClosedJaxpr, scope: _Scope) -> _Scope:
        found = scope.inner.get(id(equation))
        if found is None:
            inner = closed.jaxpr
            pairs = zip(inner.invars, equation.invars, strict=True)
            given: dict[Any, Any] = {v: (outer, scope) for v, outer in pairs}
            constants = zip(inner.constvars, closed.consts, strict=True)
            given |= {v: self._number(("held", id(value))) for v, value in constants}
            found = scope.inner[id(equation)] = _scope(inner, given)
        return found


class EqualGuard:
    """Guards that groups of cells share an array.

    Args:
        groups: the groups of cells.

    Attributes:
        cells: all but the first of each group.
        firsts: for each of these, the first cell of its group.
    """

    guarded = "equal numbers in the state"

    def __init__(self, groups: Sequence[Sequence[Cell]]) -> None:
        self.cells: list[Cell] = [cell for group in groups for cell in group[1:]]
        self.firsts: list[Cell] = [group[0] for group in groups for _ in group[1:]]

    def holds(self) -> bool:
        """Returns True if they do, or if their arrays are equal, which then become one array."""
        if all(map(is_, map(_array, self.cells), map(_array, self.firsts))):
            return True
        if len(threads.present) > 1:  # another thread may be about to change them
            return False
        arrays, firsts = list(map(_array, self.cells)), list(map(_array, self.firsts))
        if all(map(_are_equal, arrays, firsts)):
            return all(map(swap, self.cells, arrays, firsts))
        _apart.update((*self.cells, *self.firsts))
        return False

    def why(self) -> str:
        """Returns what differs."""
        return "numbers in the state that were equal, such as counts of steps, differ now"


def _are_equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if one.aval != other.aval or one.sharding != other.sharding:
        return False
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()
