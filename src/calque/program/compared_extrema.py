"""Makes XLA compute numbers once that are compared with what was selected from them.

`x == x.amax()` finds the maximum only if both sides see the same bits. XLA repeats cheap operations
in each kernel that needs their results, and the kernels may round differently, because a product
and a sum become one fused operation in one of them only. Then nothing equals the maximum, and the
gradient of `amax`, which PyTorch computes from such a comparison, is lost or goes elsewhere.

So such numbers are stored before they are used: on CPUs as the result of a conditional, which
XLA does not see through, elsewhere behind an optimization barrier.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal

from calque.device.memory.cell import x64
from calque.device.runtime.placement import spread
from calque.program.jaxprs import build
from calque.program.number_origins import (
    NOTHING,
    Found,
    Root,
    Summary,
    body_of,
    is_comparison,
    is_computed,
    is_literal,
    ranks,
    summary_of,
)


def computed_once(closed: ClosedJaxpr, has_backward: bool = False) -> ClosedJaxpr:
    """Returns an equivalent jaxpr in which such numbers are stored.

    Args:
        closed: the jaxpr.
        has_backward: whether another program may compare its results.
    """
    inner = closed.jaxpr
    has_backward = has_backward and any(map(_gives_extrema, inner.eqns))
    if not (has_backward or any(map(_may_relate, inner.eqns))):
        return closed
    search = _Search(inner)
    if has_backward:
        search.store_extrema()
    if not search.stored:
        return closed
    names: dict[Any, Any] = {}
    first: dict[Any, Any] = {}
    equations = []
    for equation in inner.eqns:
        equations.append(equation.replace(invars=[_named(names, v) for v in equation.invars]))
        for variable in equation.outvars:
            if variable not in search.stored:
                continue
            value = search.values[variable]
            if value not in first:  # XLA merges equal operations, but not what stores them
                pin = _pin(variable)
                first[value] = pin.outvars[0]
                equations.append(pin)
            names[variable] = first[value]
    return build(closed, inner.invars, [_named(names, v) for v in inner.outvars], equations)


def _named(names: dict[Any, Any], value: object) -> Any:
    return value if isinstance(value, Literal) else names.get(value, value)


def _pin(variable: Any) -> Any:
    """Returns an equation that stores a variable."""
    by_barrier = jax.default_backend() != "cpu" or spread.exists
    equation = _template(variable.aval.shape, variable.aval.dtype, by_barrier)
    return equation.replace(invars=[variable], outvars=[type(variable)(variable.aval)])


@cache
def _template(shape: tuple[int, ...], dtype: Any, by_barrier: bool) -> Any:
    def stored(x: Any) -> Any:
        if by_barrier:
            return lax.optimization_barrier(x)
        first = lax.reshape(lax.slice(x, [0] * len(shape), [1] * len(shape)), ())
        return lax.cond(first > 0, lax.optimization_barrier, lambda x: x, x)

    stored.__name__ = "calque.stored"
    with x64():
        traced = jax.make_jaxpr(jax.jit(stored))(jax.ShapeDtypeStruct(shape, dtype))
    (equation,) = traced.eqns
    return equation


_having: dict[Any, WeakKeyDictionary[Any, bool]] = defaultdict(WeakKeyDictionary)


def _has(equation: Any, asked: Callable[[Any], bool]) -> bool:
    """Returns True if an equation, or one of the operation that it calls, is of a kind."""
    body = body_of(equation)
    if body is None:
        return asked(equation)
    known = _having[asked]
    if body not in known:
        known[body] = any(_has(e, asked) for e in body.eqns)
    return known[body]


def _gives_extrema(equation: Any) -> bool:
    """Returns True if results of an equation are extrema or the like."""
    body = body_of(equation)
    if body is None or not _has(equation, ranks):
        return body is None and ranks(equation)
    known = summary_of(body).known
    return any(2 in known[v].roots.values() for v in body.outvars if not is_literal(v))


def _may_relate(equation: Any) -> bool:
    """Returns True if an equation may compare numbers with some that were selected from them."""
    if not _has(equation, is_comparison):
        return False
    body = body_of(equation)
    if body is None:
        return True

    def is_given(operand: Found) -> bool:
        return bool(operand.roots) and any(is_computed(equation.invars[i]) for i in operand.entry)

    compared = summary_of(body).compared
    return any(a.entry != b.entry and is_given(a) and is_given(b) for a, b in compared)


class _Search:
    """Finds the variables to store.

    Args:
        jaxpr: the program.

    Attributes:
        stored: the variables.
        values: represents how each variable is computed; equal for the same operation on the same
            operands.
    """

    def __init__(self, jaxpr: Any) -> None:
        self.stored: set[Any] = set()
        self.values: dict[Any, Any] = {}
        self._jaxpr = jaxpr
        self._made = {v: e for e in jaxpr.eqns for v in e.outvars}
        self._structures: dict[Any, Any] = {}
        self._evaluate()
        self._summary = Summary(jaxpr, is_whole=True)
        for a, b in self._summary.compared:
            if a.roots and b.roots:
                self._relate(a, b)

    def store_extrema(self) -> None:
        """Store the numbers of which extrema are among the results."""
        for variable in self._jaxpr.outvars:
            found = NOTHING if is_literal(variable) else self._summary.known[variable]
            self.stored.update(*(self._of(root) for root, rank in found.roots.items() if rank == 2))

    def _relate(self, a: Found, b: Found) -> None:
        """Store what two operands have in common, of which one has only a part."""
        for (one, rank), (other, other_rank) in itertools.product(a.roots.items(), b.roots.items()):
            if rank != other_rank and (one == other or self._root(one) == self._root(other)):
                self.stored |= self._of(one) | self._of(other)

    def _of(self, root: Root) -> set[Any]:
        """Returns the variables to store for a root."""
        if len(root) == 1:
            return {root[0]}
        operands = self._jaxpr.eqns[root[0]].invars
        found = [self._summary.known[v] for v in operands if not is_literal(v)]
        return set().union(*(self._of(inner) for one in found for inner in one.roots))

    def _evaluate(self) -> None:
        numbers: defaultdict[Any, int] = defaultdict(itertools.count().__next__)
        for variable in (*self._jaxpr.constvars, *self._jaxpr.invars):
            self.values[variable] = numbers[variable]
        for equation in self._jaxpr.eqns:
            operands = tuple(repr(v) if is_literal(v) else self.values[v] for v in equation.invars)
            body = body_of(equation)
            done = _operation(equation) if body is None else id(body)
            if equation.effects:
                done = id(equation)
            for index, variable in enumerate(equation.outvars):
                self.values[variable] = numbers[done, operands, index]

    def _root(self, root: Root) -> Any:
        """Represents how a root is computed from stored variables; equal for the same operation."""
        if root not in self._structures:
            index, *path = root
            if path:
                equation = self._jaxpr.eqns[index]
                given = [self._operand(v) for v in equation.invars]
                self._structures[root] = _within(body_of(equation), path, given)
            else:
                self._structures[root] = self._result(index)
        return self._structures[root]

    def _result(self, variable: Any) -> Any:
        equation = self._made[variable]
        given = [self._operand(v) for v in equation.invars]
        return _computed(equation, equation.outvars.index(variable), given)

    def _operand(self, variable: Any) -> Any:
        if is_literal(variable):
            return repr(variable)
        is_moved = (variable,) not in self._summary.known[variable].roots
        if variable not in self._made or not (is_moved and self._summary.known[variable].roots):
            return self.values[variable]
        if variable not in self._structures:
            self._structures[variable] = self._result(variable)
        return self._structures[variable]


def _within(body: Any, path: list[Any], given: list[Any]) -> Any:
    """Represents how a variable of an operation is computed from the operation's operands.

    Args:
        body: the operation's jaxpr.
        path: the indexes of calls in it, and the variable.
        given: represents the operands.
    """
    known = dict(zip(body.invars, given, strict=True))
    made = {v: e for e in body.eqns for v in e.outvars}

    def of(variable: Any) -> Any:
        if is_literal(variable):
            return repr(variable)
        if variable not in known:
            equation = made.get(variable)
            if equation is None:  # a constant
                return id(variable)
            operands = [of(v) for v in equation.invars]
            known[variable] = _computed(equation, equation.outvars.index(variable), operands)
        return known[variable]

    first, *rest = path
    if not rest:
        return of(first)
    equation = body.eqns[first]
    return _within(body_of(equation), rest, [of(v) for v in equation.invars])


def _computed(equation: Any, index: int, given: list[Any]) -> Any:
    """Represents a result of an equation."""
    body = body_of(equation)
    if body is not None:
        result = body.outvars[index]
        return repr(result) if is_literal(result) else _within(body, [result], given)
    return _operation(equation), index, tuple(given)


def _operation(equation: Any) -> Any:
    params = sorted(equation.params.items())
    if any(hasattr(value, "eqns") or hasattr(value, "jaxpr") for _, value in params):
        return id(equation)
    return equation.primitive, repr(params)
