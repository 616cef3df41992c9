"""Find what a jaxpr does again and again: the layers of a deep model, forward and backward.

Nothing is asked of the Python code. Layers are equal if they left equal equations behind, one after
another, which take from each other what they take from each other in every layer; what they take
from elsewhere (weights, the layer before) may differ. So hooks, dropout, other attributes or
patched methods make a layer another one exactly where they make its program another one.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend.core import Literal

LEAST = 6
"""How many equations make a layer."""

_PERIODS = 12  # how many lengths of a layer are tried


@dataclass(frozen=True)
class Repeat:
    """Equal stretches of equations, one behind the other.

    Attributes:
        start: where the first one begins.
        length: how many equations each has.
        given: for each stretch, what it takes from elsewhere, in one order for all. Literals are
            among them only where they differ.
        made: the results that something else takes, as (equation in the stretch, result of it).
        literals: where in a stretch literals stand that are given, as (equation, operand).
    """

    start: int
    length: int
    given: list[list[Any]]
    made: list[tuple[int, int]]
    literals: list[tuple[int, int]]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.given)

    @property
    def end(self) -> int:
        """Where the last one ends."""
        return self.start + self.length * self.count

    def stretch(self, equations: Sequence[Any], index: int) -> Sequence[Any]:
        """The equations of one of them."""
        first = self.start + index * self.length
        return equations[first : first + self.length]

    def results(self, equations: Sequence[Any], index: int) -> list[Any]:
        """The variables that something else takes from one of them, or from another one."""
        own = self.stretch(equations, index)
        return [own[place].outvars[number] for place, number in self.made]


def repeats(equations: Sequence[Any], outputs: Sequence[Any]) -> list[Repeat]:
    """The repeats among the equations of a jaxpr, in their order; none overlap.

    Args:
        equations: of the jaxpr.
        outputs: its results.
    """
    tokens = _tokens(equations)
    found = []
    last = _last_uses(equations, outputs)
    for start, period, count in _runs(tokens):
        found += _equal(equations, start, period, count, last)
    return sorted(found, key=lambda one: one.start)


# The equations as numbers -------------------------------------------------------------------------


def _tokens(equations: Sequence[Any]) -> list[int]:
    """A number for each equation, the same for those that do the same with other operands."""
    known: dict[Hashable, int] = {}
    tokens = []
    for index, equation in enumerate(equations):
        key = _key(equation)
        if key is None:
            tokens.append(-1 - index)  # like no other
        else:
            tokens.append(known.setdefault(key, len(known)))
    return tokens


def _key(equation: Any) -> Hashable | None:
    if equation.effects:
        return None
    primitive = equation.primitive
    given = tuple(
        None if not isinstance(v, Literal) else str(v.aval) for v in equation.invars
    )
    avals = None  # those of a call are its jaxpr's
    if primitive.name != "jit":
        avals = tuple(v.aval for v in equation.invars)
    key = (primitive, id(equation.ctx), given, avals, *equation.params.items())
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _runs(tokens: list[int]) -> Iterator[tuple[int, int, int]]:
    """Where the tokens repeat, as (start, period, count); the most that is saved comes first."""
    free = [True] * len(tokens)
    while True:
        best = max(_candidates(tokens, free), key=_saved, default=None)
        if best is None or not _saved(best):
            return
        start, period, count = best
        free[start : start + period * count] = [False] * (period * count)
        yield best


def _saved(run: tuple[int, int, int]) -> int:
    _, period, count = run
    return period * (count - 1)


def _candidates(tokens: list[int], free: list[bool]) -> Iterator[tuple[int, int, int]]:
    places: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for index, token in enumerate(tokens):
        if free[index]:
            if token in places:
                distances[index - places[token]] += 1
            places[token] = index
    for period, _ in distances.most_common(_PERIODS):
        if period >= LEAST:
            yield from _of_period(tokens, free, period)


def _of_period(
    tokens: list[int], free: list[bool], period: int
) -> Iterator[tuple[int, int, int]]:
    first = None
    for index in range(len(tokens) - period + 1):
        other = index + period
        equal = (
            other < len(tokens)
            and free[index]
            and free[other]
            and tokens[index] == tokens[other]
        )
        if equal and first is None:
            first = index
        elif not equal and first is not None:
            count = (index - first) // period + 1
            if count > 1:
                yield first, period, count
            first = None


# What the stretches take from where ---------------------------------------------------------------


def _last_uses(equations: Sequence[Any], outputs: Sequence[Any]) -> dict[Any, int]:
    """The last equation that takes each variable; their number for the results of the jaxpr."""
    last: dict[Any, int] = {}
    for index, equation in enumerate(equations):
        for variable in equation.invars:
            if not isinstance(variable, Literal):
                last[variable] = index
    for variable in outputs:
        if not isinstance(variable, Literal):
            last[variable] = len(equations)
    return last


@dataclass(frozen=True)
class _Flow:
    """What one stretch takes from where.

    Attributes:
        form: for each operand, the equation and the result it is, or the how manieth other variable
            it is, or that it is a literal.
        given: these variables.
        literals: the values of the literals, as bytes.
    """

    form: tuple[Any, ...]
    given: list[Any]
    literals: list[bytes]


def _flow(stretch: Sequence[Any]) -> _Flow:
    made: dict[Any, tuple[int, int]] = {}
    given: dict[Any, int] = {}
    form: list[Any] = []
    literals = []
    for place, equation in enumerate(stretch):
        for variable in equation.invars:
            if isinstance(variable, Literal):
                form.append(None)
                literals.append(np.asarray(variable.val).tobytes())
            elif variable in made:
                form.append(made[variable])
            else:
                form.append(given.setdefault(variable, len(given)))
        for number, variable in enumerate(equation.outvars):
            made[variable] = place, number
    return _Flow(tuple(form), list(given), literals)


def _equal(
    equations: Sequence[Any], start: int, period: int, count: int, last: dict[Any, int]
) -> Iterator[Repeat]:
    """The stretches of a run that take from each other what the others take."""
    flows = [_flow(equations[start + i * period :][:period]) for i in range(count)]
    first = 0
    while first < count:
        behind = first + 1
        while behind < count and flows[behind].form == flows[first].form:
            behind += 1
        if behind - first > 1:
            yield _repeat(equations, start + first * period, period, flows[first:behind], last)
        first = behind


def _repeat(
    equations: Sequence[Any], start: int, period: int, flows: list[_Flow], last: dict[Any, int]
) -> Repeat:
    operands = [
        (place, number)
        for place, equation in enumerate(equations[start : start + period])
        for number, variable in enumerate(equation.invars)
        if isinstance(variable, Literal)
    ]
    literals = [
        place
        for i, place in enumerate(operands)
        if any(flow.literals[i] != flows[0].literals[i] for flow in flows)
    ]
    given, made = [], set()
    for index, flow in enumerate(flows):
        begin = start + index * period
        own = equations[begin : begin + period]
        given.append(flow.given + [own[place].invars[number] for place, number in literals])
        for place, equation in enumerate(own):
            for number, variable in enumerate(equation.outvars):
                if last.get(variable, -1) >= begin + period:
                    made.add((place, number))
    return Repeat(start, period, given, sorted(made), literals)
