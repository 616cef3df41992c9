"""Splits operators on lists of tensors into a small program for each tensor.

PyTorch's optimizers call one operator after another on lists of all parameters. The computation is
the same for all parameters of the same shape. So the operators are split and regrouped by
parameter, and each group becomes a call of one shared program.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend.core import Literal

from calque.program.isomorphic_equations import Alike, Keys, alike

_LISTS = "_foreach_"
_MOST = 4
"""The maximum number of columns that a part of an operator may combine, to exclude a norm of all.
"""


def is_of_lists(equation: Any) -> bool:
    """Returns True if an equation is an operator on lists, with a part for each tensor."""
    return equation.primitive.name == "jit" and _LISTS in str(equation.params["name"])


class Region:
    """Equations following an operator on lists, as independent columns.

    Attributes:
        before: the equations that do not depend on the columns.
    """

    def __init__(self) -> None:
        self.before: list[Any] = []
        self._column_of: dict[Any, int] = {}
        self._parent: list[int] = []  # union-find over columns
        self._equations: list[tuple[Any, int]] = []

    def takes(self, equation: Any) -> bool:
        """Add an equation; returns False if it combines columns, which ends the region."""
        if equation.effects:
            return False
        if not is_of_lists(equation):
            touched = self._touched(equation)
            if len(touched) > 1:
                return False
            if touched:
                self._add(equation, touched)
            else:
                self.before.append(equation)
            return True
        parts = _parts(equation)
        wide = [part for part in parts if len(part.invars) > _MOST]
        if any(len(self._touched(part)) > _MOST for part in wide):
            return False
        for part in parts:
            self._add(part, self._touched(part))
        return True

    def _touched(self, equation: Any) -> set[int]:
        """Returns the columns whose results an equation uses."""
        known = self._column_of
        given = [known[v] for v in equation.invars if not isinstance(v, Literal) and v in known]
        return {self._root(column) for column in given}

    def _root(self, column: int) -> int:
        parent = self._parent
        while parent[column] != column:
            parent[column] = column = parent[parent[column]]
        return column

    def _add(self, equation: Any, touched: set[int]) -> None:
        """Add an equation to the columns whose results it uses, and merge these columns."""
        if touched:
            own = touched.pop()
            for other in touched:
                self._parent[other] = own
        else:
            own = len(self._parent)
            self._parent.append(own)
        self._equations.append((equation, own))
        for variable in equation.outvars:
            self._column_of[variable] = own

    def columns(self) -> list[list[Any]]:
        """Returns the equations of each column."""
        found: dict[int, list[Any]] = {}
        for equation, column in self._equations:
            found.setdefault(self._root(column), []).append(equation)
        return list(found.values())


def columns_alike(
    columns: Sequence[list[Any]], outside: set[Any]
) -> Iterator[tuple[list[int], Alike]]:
    """Yields groups of equivalent columns, as lists of their indexes.

    Args:
        columns: the columns of a region.
        outside: the variables that are used after the region.
    """
    kinds: dict[Any, list[int]] = {}
    key_of = Keys().of
    for index, column in enumerate(columns):
        keys = tuple(map(key_of, column))
        if None not in keys:
            kinds.setdefault(keys, []).append(index)
    for members in kinds.values():
        if len(members) > 1:
            stretches = [columns[i] for i in members]
            for chosen, one in alike(stretches, lambda _, variable: variable in outside):
                yield [members[i] for i in chosen], one


def _parts(equation: Any) -> list[Any]:
    """Returns the equations of an operator's inner jaxpr, with the operands and results
    substituted.
    """
    inner, parts = equation.params["jaxpr"].jaxpr, []
    names: dict[Any, Any] = dict(zip(inner.invars, equation.invars, strict=True))
    for own, outer in zip(inner.outvars, equation.outvars, strict=True):
        names[own] = outer
    for part in inner.eqns:
        for variable in part.outvars:
            if variable not in names:
                names[variable] = type(variable)(variable.aval)
        given = [v if isinstance(v, Literal) else names[v] for v in part.invars]
        parts.append(part.replace(invars=given, outvars=[names[v] for v in part.outvars]))
    return parts


def can_be_taken_apart(equation: Any) -> bool:
    """Returns True if each result of an operator is computed by a separate equation."""
    closed = equation.params["jaxpr"]
    made = {v for e in closed.jaxpr.eqns for v in e.outvars}
    results = closed.jaxpr.outvars
    if closed.consts or any(isinstance(v, Literal) or v not in made for v in results):
        return False
    return len(set(results)) == len(results)


def regions(equations: Sequence[Any]) -> Iterator[tuple[int, int, Region]]:
    """Yields the regions of some equations, as (start, end, region)."""
    index = 0
    while index < len(equations):
        if not is_of_lists(equations[index]) or not can_be_taken_apart(equations[index]):
            index += 1
            continue
        start, region = index, Region()
        while index < len(equations):
            equation = equations[index]
            if is_of_lists(equation) and not can_be_taken_apart(equation):
                break
            if not region.takes(equation):
                break
            index += 1
        if index == start:
            index += 1
        else:
            yield start, index, region
