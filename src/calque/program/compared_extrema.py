"""Makes XLA compute numbers once that are compared with what was selected from them.

`x == x.amax()` finds the maximum only if both sides see the same bits. XLA repeats cheap operations
in each kernel that needs their results, and the kernels may round differently, because a product
and a sum become one fused operation in one of them only. Then nothing equals the maximum, and the
gradient of `amax`, which PyTorch computes from such a comparison, is lost or goes elsewhere.

So such numbers are stored before they are used: on CPUs as the result of a conditional, which
XLA does not see through, elsewhere behind an optimization barrier.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal

from calque.device.memory.cell import x64
from calque.device.runtime.placement import spread
from calque.program.jaxprs import build

_COMPARING = frozenset((lax.eq_p, lax.ne_p, lax.lt_p, lax.le_p, lax.gt_p, lax.ge_p))
_RANKING = frozenset(
    (
        *(lax.reduce_max_p, lax.reduce_min_p, lax.sort_p, lax.top_k_p, lax.cummax_p, lax.cummin_p),
        *(lax.scatter_max_p, lax.scatter_min_p),
    )
)
_SELECTING = frozenset(
    (
        *(lax.max_p, lax.min_p, lax.clamp_p, lax.reduce_window_max_p, lax.reduce_window_min_p),
        *(lax.gather_p, lax.scatter_p, lax.slice_p, lax.dynamic_slice_p),
    )
)
_MOVING = (_RANKING | _SELECTING).union(
    (
        *(lax.reshape_p, lax.broadcast_in_dim_p, lax.transpose_p, lax.squeeze_p, lax.rev_p),
        *(lax.concatenate_p, lax.pad_p, lax.select_n_p, lax.copy_p, lax.abs_p, lax.neg_p),
        *(lax.dynamic_update_slice_p, lax.convert_element_type_p, lax.optimization_barrier_p),
    )
)
"""Operations that give some of their operands' numbers, or these without a sign."""


class _Root(NamedTuple):
    """A number that was computed, from which others were selected.

    Attributes:
        value: represents how it was computed; equal for the same operation on the same numbers.
        stored: the variables of the program that have to be stored.
    """

    value: Any
    stored: frozenset[Any]


class _Found(NamedTuple):
    """What is known of a variable.

    Attributes:
        value: represents how it was computed.
        roots: the numbers among which its own are.
        rank: 2 if they are extrema of these or so, 1 if some were selected, 0 for all of them.
        entry: the variables of the program through which they came into the operation.
    """

    value: Any
    roots: frozenset[_Root] = frozenset()
    rank: int = 0
    entry: frozenset[Any] = frozenset()


def computed_once(closed: ClosedJaxpr, has_backward: bool = False) -> ClosedJaxpr:
    """Returns an equivalent jaxpr in which such numbers are stored.

    Args:
        closed: the jaxpr.
        has_backward: whether another program may compare its results.
    """
    inner = closed.jaxpr
    has_backward = has_backward and any(_has(e, _ranks) for e in inner.eqns)
    if not (has_backward or any(_has(e, _is_comparison) for e in inner.eqns)):
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
            value = search.known[variable].value
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


def _is_computed(value: Any) -> bool:
    """Returns True for a variable that may hold rounded numbers."""
    if isinstance(value, Literal):
        return False
    return jax.numpy.issubdtype(value.aval.dtype, jax.numpy.floating) and value.aval.size > 0


def _body(equation: Any) -> Any:
    return equation.params["jaxpr"].jaxpr if equation.primitive.name == "jit" else None


def _is_comparison(equation: Any) -> bool:
    return equation.primitive in _COMPARING and all(map(_is_computed, equation.invars))


def _rank(primitive: Any) -> int:
    return 2 if primitive in _RANKING else int(primitive in _SELECTING)


def _ranks(equation: Any) -> bool:
    return equation.primitive in _RANKING and _is_computed(equation.outvars[0])


_having: dict[Any, WeakKeyDictionary[Any, bool]] = {
    _is_comparison: WeakKeyDictionary(),
    _ranks: WeakKeyDictionary(),
}


def _has(equation: Any, asked: Callable[[Any], bool]) -> bool:
    """Returns True if an equation, or one of the operation that it calls, is of a kind."""
    body = _body(equation)
    if body is None:
        return asked(equation)
    known = _having[asked]
    if body not in known:
        known[body] = any(_has(e, asked) for e in body.eqns)
    return known[body]


class _Search:
    """Finds the variables to store.

    Args:
        jaxpr: the program.

    Attributes:
        known: what is known of its variables.
        stored: those that have to be stored.
    """

    def __init__(self, jaxpr: Any) -> None:
        self.known: dict[Any, _Found] = {}
        self.stored: set[Any] = set()
        self._serial = iter(range(2**62))
        self._values: dict[Any, int] = {}
        for variable in (*jaxpr.constvars, *jaxpr.invars):
            self.known[variable] = _Found(next(self._serial))
        for equation in jaxpr.eqns:
            own = {variable: variable for variable in equation.outvars}
            self._visit(equation, self.known, own, None)
        self._results = dict.fromkeys(v for v in jaxpr.outvars if _is_computed(v))

    def store_extrema(self) -> None:
        """Store the numbers of which extrema are among the results."""
        for one in map(self.known.__getitem__, self._results):
            if one.rank == 2:
                self.stored.update(*(root.stored for root in one.roots))

    def _visit(
        self, equation: Any, known: dict[Any, _Found], own: dict[Any, Any], around: Any
    ) -> None:
        """Find out what an equation's results are.

        Args:
            equation: the equation.
            known: what is known of the variables of its jaxpr.
            own: the variables of the program, by those of the jaxpr that hold the same.
            around: the variables of the program that the operation around it takes; None if there
                is none.
        """
        body = _body(equation)
        operands = [self._operand(v, known, around) for v in equation.invars]
        if body is not None:
            self._enter(body, equation, operands, known, own, around)
            return
        if _is_comparison(equation):
            a, b = operands
            if a.rank != b.rank and a.entry != b.entry:
                self._relate(a, b)
        value = self._value(equation, operands)
        for index, variable in enumerate(equation.outvars):
            roots, rank = frozenset[_Root](), 0
            entry = frozenset[Any]().union(*(one.entry for one in operands))
            if _is_computed(variable):
                if equation.primitive in _MOVING:
                    roots = roots.union(*(one.roots for one in operands))
                    rank = max(_rank(equation.primitive), *(one.rank for one in operands))
                else:
                    stored = {own[variable]} if variable in own else around or ()
                    roots = frozenset((_Root((value, index), frozenset(stored)),))
            known[variable] = _Found((value, index), roots, rank, entry)

    def _enter(
        self,
        body: Any,
        equation: Any,
        operands: list[_Found],
        known: dict[Any, _Found],
        own: dict[Any, Any],
        around: Any,
    ) -> None:
        inside = {v: _Found(next(self._serial)) for v in body.constvars}
        inside.update(zip(body.invars, operands, strict=True))
        if around is None:
            taken = (root for one in operands for root in one.roots)
            around = frozenset[Any]().union(*(root.stored for root in taken))
        named = zip(body.outvars, equation.outvars, strict=True)
        outer = {v: own[result] for v, result in named if result in own and not _is_literal(v)}
        for each in body.eqns:
            self._visit(each, inside, outer, around)
        for v, result in zip(body.outvars, equation.outvars, strict=True):
            known[result] = _Found(v.val) if _is_literal(v) else inside[v]

    def _operand(self, value: Any, known: dict[Any, _Found], around: Any) -> _Found:
        if _is_literal(value):
            return _Found((str(value.aval), repr(value.val)))
        found = known[value]
        return found if around is not None else found._replace(entry=frozenset((value,)))

    def _value(self, equation: Any, operands: list[_Found]) -> Any:
        """Returns a value that is equal for the same operation on the same operands."""
        params = tuple(sorted((k, _comparable(v)) for k, v in equation.params.items()))
        if equation.effects or any(v is None for _, v in params):
            return next(self._serial)
        key = equation.primitive, params, tuple(one.value for one in operands)
        return self._values.setdefault(key, next(self._serial))

    def _relate(self, a: _Found, b: _Found) -> None:
        """Store what two variables have in common, if one is compared with the other."""
        common = {root.value for root in a.roots} & {root.value for root in b.roots}
        for root in (*a.roots, *b.roots):
            if root.value in common:
                self.stored |= root.stored


def _is_literal(value: object) -> bool:
    return isinstance(value, Literal)


def _comparable(value: Any) -> Any:
    """Returns a parameter as a comparable text; None if there is none."""
    return None if isinstance(value, ClosedJaxpr) or hasattr(value, "eqns") else repr(value)
