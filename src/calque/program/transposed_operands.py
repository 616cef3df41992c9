"""Materializes transposed matrices before products if this is faster.

Every weight's gradient is a product whose left operand is transposed. XLA folds the transposition
into the product, but its fast CPU products do not support such operands: with materialized
operands, the gradients of a layer of 512 to 128 take 0.6 of the time. XLA's compilers for other
devices handle this well.

An operand that is ready long before the other one, such as an activation in `x.T @ gradient`, stays
folded, because XLA would transpose it at once and keep the copy until it is needed. So do small
operands if a program has very many: each is a kernel of its own, and the processor's caches hold
few of them. A step of 300 layers of 16 takes 0.8 of the time that way; of 1,000, 0.96, and its
first call 0.77.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal

from calque.device.memory.cell import x64
from calque.device.memory.view_access import READ_VIEW
from calque.program.jaxprs import build

_SMALL, _MANY = 2**14, 150  # bytes of a small operand, and how many of them are materialized


def materialized(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Returns an equivalent jaxpr in which such operands are materialized first."""
    if jax.default_backend() != "cpu":
        return closed
    inner = closed.jaxpr
    kept = set(_left_operands(inner.eqns))
    small = {v for v in kept if v.aval.size * v.aval.dtype.itemsize <= _SMALL}
    if len(small) > _MANY:
        kept -= small
    if not kept:
        return closed
    names: dict[Any, Any] = {}
    equations = []
    for equation in inner.eqns:
        equations.append(equation.replace(invars=[_named(names, v) for v in equation.invars]))
        for variable in equation.outvars:
            if variable in kept:
                barrier = _barrier(variable)
                names[variable] = barrier.outvars[0]
                equations.append(barrier)
    outputs = [_named(names, v) for v in inner.outvars]
    return build(closed, inner.invars, outputs, equations)


def _named(names: dict[Any, Any], value: object) -> Any:
    return value if isinstance(value, Literal) else names.get(value, value)


def _barrier(variable: Any) -> Any:
    """Returns an equation that makes XLA materialize a variable."""
    equation = _template(variable.aval.shape, variable.aval.dtype)
    return equation.replace(invars=[variable], outvars=[type(variable)(variable.aval)])


@cache
def _template(shape: tuple[int, ...], dtype: Any) -> Any:
    with x64():
        traced = jax.make_jaxpr(lax.optimization_barrier)(jax.ShapeDtypeStruct(shape, dtype))
    (equation,) = traced.eqns
    return equation


def _left_operands(equations: list[Any]) -> Iterable[Any]:
    """Returns the transposed matrices that are left operands of products, and are computed at the
    same time as the other operand.
    """
    made = {v: (at, e) for at, e in enumerate(equations) for v in e.outvars}
    calls = [(e, e.params["jaxpr"].jaxpr) for e in equations if e.primitive.name == "jit"]
    inners = {id(inner): inner for _, inner in calls}
    known = {key: (_transposed(inner), _multiplied(inner)) for key, inner in inners.items()}
    transposed = {e.outvars[i] for e, inner in calls for i in known[id(inner)][0]}
    for equation, inner in calls:
        for i, j in known[id(inner)][1]:
            left, right = equation.invars[i], equation.invars[j]
            if isinstance(left, Literal) or isinstance(right, Literal):
                continue
            if left in transposed and _since(left, made) >= _since(right, made):
                yield left


def _since(variable: object, made: dict[Any, tuple[int, Any]]) -> int:
    """Returns the index of the equation that computes a variable; -1 for an input."""
    while variable in made:
        at, equation = made[variable]
        if equation.params.get("name") != READ_VIEW:
            return at
        variable = equation.invars[0]
    return -1


def _transposed(inner: Any) -> list[int]:
    """Returns the results of a jaxpr that are transposed matrices."""
    made = {v: e for e in inner.eqns for v in e.outvars}
    return [
        i
        for i, own in enumerate(inner.outvars)
        if not isinstance(own, Literal) and own in made and _transposes(made[own])
    ]


def _transposes(equation: Any) -> bool:
    return equation.primitive.name == "transpose" and equation.params["permutation"] == (1, 0)


def _multiplied(inner: Any) -> list[tuple[int, int]]:
    """Returns the inputs of a jaxpr that it multiplies as matrices."""
    places = {v: i for i, v in enumerate(inner.invars)}
    products = [
        e.invars
        for e in inner.eqns
        if e.primitive.name == "dot_general"
        and e.params["dimension_numbers"] == (((1,), (0,)), ((), ()))
    ]
    return [
        (places[left], places[right])
        for left, right in products
        if not isinstance(left, Literal)
        and not isinstance(right, Literal)
        and left in places
        and right in places
    ]
