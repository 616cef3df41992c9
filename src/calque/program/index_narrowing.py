"""Narrows indices to 32 bits, for programs that the user's JAX code transforms and compiles.

A program is traced in JAX's 64-bit mode. Transforms, such as `jax.vmap` of a slice, create new
indices with the dtype of the old ones in the caller's mode, where without 64 bits they become
int32, which does not match. 32 bits are enough for indices into an axis shorter than 2**31. The
same holds for the results of `argmax`.
"""

from typing import Any

import jax
from jax import ShapeDtypeStruct, lax
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.numpy import dtype, int32

from calque.device.memory.cell import x64
from calque.program.jaxprs import build

_LONGEST = 2**31


def with_narrow_indices(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Returns an equivalent program with int32 indices, wherever an array's axes allow it."""
    if not _has_wide(closed.jaxpr):
        return closed
    equations = []
    for equation in closed.jaxpr.eqns:
        given = list(equation.invars)
        if _is_wide(equation):
            for i in _positions(equation):
                conversion = _conversion(given[i])
                equations.append(conversion)
                given[i] = conversion.outvars[0]
        params = {name: _narrowed(value) for name, value in equation.params.items()}
        equation = equation.replace(invars=given, params=params)
        equations += _positions_found(equation) if _finds_wide(equation) else [equation]
    return build(closed, closed.jaxpr.invars, closed.jaxpr.outvars, equations)


def _conversion(index: Any) -> Any:
    """Returns an equation that converts an index to int32, and its new variable."""
    like = ShapeDtypeStruct(index.aval.shape, index.aval.dtype, weak_type=index.aval.weak_type)
    with x64():
        traced = jax.make_jaxpr(lambda i: lax.convert_element_type(i, int32))(like)
    return traced.jaxpr.eqns[0].replace(invars=[index])


def _positions(equation: Any) -> range:
    """Returns the positions of the operands that are indices into the first one."""
    name = equation.primitive.name
    if name.startswith(("gather", "scatter")):
        return range(1, 2)
    first = {"dynamic_slice": 1, "dynamic_update_slice": 2}.get(name)
    return range(0) if first is None else range(first, len(equation.invars))


def _finds_wide(equation: Any) -> bool:
    wide = dtype(equation.params.get("index_dtype", int32)).itemsize == 8
    return wide and max(equation.invars[0].aval.shape, default=0) < _LONGEST


def _positions_found(equation: Any) -> list[Any]:
    """Returns an `argmax` with 32-bit results, and the conversion of its result."""
    (wide,) = equation.outvars
    like = ShapeDtypeStruct(wide.aval.shape, int32)
    with x64():
        traced = jax.make_jaxpr(lambda i: lax.convert_element_type(i, wide.aval.dtype))(like)
    (narrow,) = traced.jaxpr.invars
    params = {**equation.params, "index_dtype": dtype(int32)}
    found = equation.replace(outvars=[narrow], params=params)
    return [found, traced.jaxpr.eqns[0].replace(outvars=[wide])]


def _is_wide(equation: Any) -> bool:
    positions = _positions(equation)
    if not positions or max(equation.invars[0].aval.shape, default=0) >= _LONGEST:
        return False
    return any(dtype(equation.invars[i].aval.dtype).itemsize == 8 for i in positions)


def _has_wide(jaxpr: Jaxpr) -> bool:
    return any(
        _is_wide(equation) or _finds_wide(equation) or any(map(_has_wide, _inner(equation)))
        for equation in jaxpr.eqns
    )


def _inner(equation: Any) -> list[Jaxpr]:
    """Returns the inner programs of an equation."""
    found = []
    for value in equation.params.values():
        for part in value if type(value) in (tuple, list) else (value,):
            if isinstance(part, ClosedJaxpr):
                found.append(part.jaxpr)
            elif isinstance(part, Jaxpr):
                found.append(part)
    return found


def _narrowed(value: Any) -> Any:
    """Returns a parameter of an equation, in which inner programs are rewritten."""
    if type(value) in (tuple, list):  # not dimension numbers
        return type(value)(map(_narrowed, value))
    if isinstance(value, ClosedJaxpr):
        return with_narrow_indices(value)
    if isinstance(value, Jaxpr) and not value.constvars:
        return with_narrow_indices(ClosedJaxpr(value, ())).jaxpr
    return value
