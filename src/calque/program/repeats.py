"""Finds repetitions in a jaxpr: the layers of a deep model, forward and backward.

The Python code does not matter: consecutive layers are equal if their equations are (see
`isomorphic_equations`). So hooks, dropout, attributes or patched methods make a layer different
only if they change its equations.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend.core import Literal

from calque.program.isomorphic_equations import Alike, Keys, alike

LEAST = 6
"""The minimum number of equations in a layer."""

_PERIODS = 12  # the number of layer lengths to try


@dataclass(frozen=True)
class Repeat:
    """Consecutive equivalent sequences of equations.

    Attributes:
        start: the start of the first sequence.
        alike: the sequences.
    """

    start: int
    alike: Alike

    @property
    def end(self) -> int:
        """The position after the last sequence."""
        return self.start + sum(map(len, self.alike.stretches))


def repeats(equations: Sequence[Any], outputs: Sequence[Any], least: int = LEAST) -> list[Repeat]:
    """Returns the non-overlapping repeats among the equations of a jaxpr, in order.

    Args:
        equations: the equations of the jaxpr.
        outputs: its results.
        least: the minimum number of equations of a layer.
    """
    last = _last_uses(equations, outputs)
    found = []
    for start, period, count in _runs(_tokens(equations), least):
        ends = [start + (i + 1) * period for i in range(count)]
        stretches = [equations[end - period : end] for end in ends]

        def is_needed(index: int, variable: object, ends: list[int] = ends) -> bool:
            return last.get(variable, -1) >= ends[index]

        for members, one in alike(stretches, is_needed):
            if members == list(range(members[0], members[0] + len(members))):
                found.append(Repeat(start + members[0] * period, one))
    return sorted(found, key=lambda one: one.start)


def _tokens(equations: Sequence[Any]) -> list[int]:
    """Returns a number for each equation, equal for equations that differ only in their
    operands.
    """
    known: dict[Hashable, int] = {}
    tokens = []
    key_of = Keys().of
    for index, equation in enumerate(equations):
        key = key_of(equation)
        tokens.append(-1 - index if key is None else known.setdefault(key, len(known)))
    return tokens


def _last_uses(equations: Sequence[Any], outputs: Sequence[Any]) -> dict[Any, int]:
    """Returns the index of the last equation that uses each variable; the number of equations for
    results.
    """
    last: dict[Any, int] = {}
    for index, equation in enumerate(equations):
        for variable in equation.invars:
            if not isinstance(variable, Literal):
                last[variable] = index
    last.update((v, len(equations)) for v in outputs if not isinstance(v, Literal))
    return last


# Numbers that repeat ------------------------------------------------------------------------------

_Run = tuple[int, int, int]
"""A repetition of numbers: start, period, count."""


def _runs(tokens: list[int], least: int) -> Iterator[_Run]:
    """Yields non-overlapping repeats of the numbers, starting with the one that saves most."""
    numbers = np.array(tokens, np.int64)
    free = np.ones(len(tokens), np.bool_)
    while True:
        best = max(_candidates(numbers, free, least), key=_saved, default=None)
        if best is None:
            return
        start, period, count = best
        free[start : start + period * count] = False
        yield best


def _saved(run: _Run) -> int:
    _, period, count = run
    return period * (count - 1)


def _candidates(tokens: Any, free: Any, least: int) -> Iterator[_Run]:
    places = np.flatnonzero(free)
    order = places[np.argsort(tokens[places], kind="stable")]
    is_same = tokens[order[1:]] == tokens[order[:-1]]
    earlier, distances = order[1:][is_same], (order[1:] - order[:-1])[is_same]
    found, first, counts = np.unique(
        distances[np.argsort(earlier)], return_index=True, return_counts=True
    )
    for index in np.lexsort((first, -counts))[:_PERIODS]:
        period = int(found[index])
        if period >= least:
            yield from _of_period(tokens, free, period)


def _of_period(tokens: Any, free: Any, period: int) -> Iterator[_Run]:
    equal = free[:-period] & free[period:] & (tokens[:-period] == tokens[period:])
    changes = np.flatnonzero(np.diff(equal, prepend=False, append=False))
    for first, end in changes.reshape(-1, 2).tolist():
        count = (end - first) // period + 1
        if count > 1:
            yield first, period, count
