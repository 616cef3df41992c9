"""Sequences of equations that do the same with different variables.

They are alike if their equations are pairwise the same, with the same connections. Their inputs
from elsewhere and their literals may differ.
"""

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from calque.program.scope_names import merged, renamed, shared, within

Equations = Sequence[Any]
Place = tuple[int, int]


@dataclass(frozen=True)
class Alike:
    """A group of equivalent sequences.

    Attributes:
        stretches: the equations of each sequence.
        given: for each sequence, its inputs from elsewhere, in the same order. Literals are
            included if they differ.
        made: the results that are used elsewhere, as (equation in the sequence, index of the
            result).
        literals: the positions of the literals that are inputs, as (equation, operand).
    """

    stretches: list[Equations]
    given: list[list[Any]]
    made: list[Place]
    literals: list[Place]

    def results(self, index: int) -> list[Any]:
        """Returns the variables that are used outside their sequence,
        as positions in one sequence.
        """
        own = self.stretches[index]
        return [own[place].outvars[number] for place, number in self.made]

    @cached_property
    def scopes(self) -> list[Any]:
        """Returns the name scopes of each sequence."""
        return [shared(stretch) for stretch in self.stretches]

    def _named(self) -> list[Any]:
        """Returns the first sequence's equations, with name scopes that fit all sequences."""
        depths = list(map(len, self.scopes))
        return [
            renamed(
                row[0],
                merged([within(e, depth) for e, depth in zip(row, depths, strict=True)]),
            )
            for row in zip(*self.stretches, strict=True)
        ]

    def body(self, jaxpr: Any) -> ClosedJaxpr:
        """Returns the work of each sequence as a jaxpr from its inputs to its results.

        Args:
            jaxpr: the jaxpr that contains them.
        """
        equations = self._named()
        results = self.results(0)
        kind = type(equations[0].outvars[0])
        inputs = [kind(v.aval) if isinstance(v, Literal) else v for v in self.given[0]]
        own = inputs[len(inputs) - len(self.literals) :]
        for (place, number), variable in zip(self.literals, own, strict=True):
            operands = list(equations[place].invars)
            operands[number] = variable
            equations[place] = equations[place].replace(invars=operands)
        debug_info = jaxpr.debug_info.with_unknown_names()
        debug_info = debug_info._replace(
            arg_names=None if debug_info.arg_names is None else ("",) * len(inputs),
            result_paths=None if debug_info.result_paths is None else ("",) * len(results),
        )
        found = jaxpr.replace(
            constvars=[],
            invars=inputs,
            outvars=results,
            eqns=equations,
            effects=frozenset(),
            debug_info=debug_info,
        )
        return ClosedJaxpr(found, [])


class Keys:
    """Keys of what equations do, apart from their operands.

    Many equations of a trace share their parameters (see `staged_calls`), whose content is compared
    once.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, int | None]] = {}
        self._numbers: dict[Hashable, int] = {}

    def of(self, equation: Any) -> Hashable | None:
        """Returns the key of an equation; None if it is unique."""
        if equation.effects:
            return None
        number = self._number(equation.params)
        return None if number is None else (number, *_form(equation))

    def _number(self, params: dict[str, Any]) -> int | None:
        """Returns the same number for equal parameters; None if they are unique."""
        known = self._known.get(id(params))
        if known is not None:
            return known[1]
        content = _content_of(params)
        try:
            number = self._numbers.setdefault(content, len(self._numbers))
        except TypeError:
            number = None
        self._known[id(params)] = params, number  # which keeps the object, and so its id
        return number


def _form(equation: Any) -> tuple[Any, ...]:
    """Returns what an equation does, apart from its operands and parameters."""
    primitive, operands = equation.primitive, equation.invars
    given = tuple([v.aval if isinstance(v, Literal) else None for v in operands])
    avals = None  # determined by the inner jaxpr
    if primitive.name != "jit":
        avals = tuple([v.aval for v in operands])
    return primitive, id(equation.ctx), given, avals


def _content_of(params: dict[str, Any]) -> tuple[Any, ...]:
    return tuple([(name, _by_content(value)) for name, value in params.items()])


def _key_of(equation: Any) -> Hashable | None:
    """Returns a key of what an equation does, apart from its operands; None if it is unique."""
    if equation.effects:
        return None
    key = (*_form(equation), *_content_of(equation.params))
    try:
        hash(key)
    except TypeError:
        return None
    return key


class _Content:
    """The content of an inner jaxpr; equal for equivalent ones.

    Whether a function that is called twice becomes one jaxpr or two depends on JAX's caches. The
    repeats of a program, and so its text, must not depend on them.
    """

    __slots__ = ("_content", "_hash")

    def __init__(self, closed: ClosedJaxpr) -> None:
        jaxpr = closed.jaxpr
        inputs = (*jaxpr.constvars, *jaxpr.invars)
        numbers = {variable: number for number, variable in enumerate(inputs)}

        def key_of_operand(operand: object) -> Any:
            if isinstance(operand, Literal):
                return operand.aval, np.asarray(operand.val).tobytes()
            return numbers[operand]

        lines = []
        for equation in jaxpr.eqns:
            lines.append((_key_of(equation), *map(key_of_operand, equation.invars)))
            for variable in equation.outvars:
                numbers[variable] = len(numbers)
        content: Any = id(closed)
        if all(line[0] is not None for line in lines):
            avals = tuple([variable.aval for variable in inputs])
            consts = tuple(map(id, closed.consts))
            content = (avals, consts, *lines, *map(key_of_operand, jaxpr.outvars))
        self._content = content
        self._hash = hash(content)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        same = isinstance(other, _Content) and self._hash == other._hash
        return same and self._content == other._content


_contents: weakref.WeakKeyDictionary[ClosedJaxpr, _Content] = weakref.WeakKeyDictionary()


def _by_content(value: object) -> Any:
    """Returns a parameter of an equation, with jaxprs in it compared by content."""
    if type(value) is tuple:
        return tuple(map(_by_content, value))
    if not isinstance(value, ClosedJaxpr):
        return value
    found = _contents.get(value)
    if found is None:
        found = _contents[value] = _Content(value)
    return found


def alike(
    stretches: Sequence[Equations], is_needed: Callable[[int, Any], bool]
) -> Iterator[tuple[list[int], Alike]]:
    """Groups equivalent sequences of equations; each group is a list of their indexes.

    Args:
        stretches: the sequences, whose equations are pairwise the same (see `Keys`).
        is_needed: returns whether a result is used after its sequence, given the index of the
            sequence and the result.
    """
    flows = [_flow(stretch) for stretch in stretches]
    groups: dict[Any, list[int]] = {}
    for index, flow in enumerate(flows):
        groups.setdefault(flow.form, []).append(index)
    for members in groups.values():
        if len(members) > 1:
            rows = [(stretches[i], flows[i]) for i in members]
            needed = {
                (place, number)
                for i in members
                for place, equation in enumerate(stretches[i])
                for number, variable in enumerate(equation.outvars)
                if is_needed(i, variable)
            }
            yield members, _grouped(rows, sorted(needed))


@dataclass(frozen=True)
class _Flow:
    """The data flow into one sequence.

    Attributes:
        form: for each operand, its equation and result, or its index among the inputs, or that it
            is a literal.
        given: the inputs.
        literals: the values of the literals, as bytes.
    """

    form: tuple[Any, ...]
    given: list[Any]
    literals: list[bytes]


def _flow(stretch: Equations) -> _Flow:
    made: dict[Any, Place] = {}
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


def _grouped(rows: list[tuple[Equations, _Flow]], made: list[Place]) -> Alike:
    first, flow = rows[0]
    places = [
        (place, number)
        for place, equation in enumerate(first)
        for number, variable in enumerate(equation.invars)
        if isinstance(variable, Literal)
    ]
    differing = [
        place
        for i, place in enumerate(places)
        if any(other.literals[i] != flow.literals[i] for _, other in rows)
    ]
    given = [
        flow.given + [own[place].invars[number] for place, number in differing]
        for own, flow in rows
    ]
    return Alike([own for own, _ in rows], given, made, differing)
