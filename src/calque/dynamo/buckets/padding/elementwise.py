"""Rules for elementwise primitives, and for those that create arrays.

A primitive with neither symbols nor padded operands needs no rule.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from calque.dynamo.buckets.padding.padded import (
    SAME,
    Layout,
    Padded,
    Sizes,
    Unpaddable,
    aligned,
    layout_of,
    reshaped,
)
from calque.dynamo.buckets.padding.table import rule
from calque.upstream.jax_internals import is_symbolic_dim

_ELEMENTWISE = frozenset(
    (
        "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2",
        "atanh", "bessel_i0e", "bessel_i1e", "bitcast_convert_type", "cbrt", "ceil", "clamp",
        "clz", "complex", "conj", "convert_element_type", "copy", "copy_p", "cos", "cosh",
        "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge",
        "gt", "igamma", "igamma_grad_a", "igammac", "imag", "integer_pow", "is_finite", "le",
        "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter",
        "not", "or", "polygamma", "population_count", "pow", "real", "reduce_precision",
        "regularized_incomplete_beta", "rem", "round", "rsqrt", "select_n", "shift_left",
        "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square",
        "stop_gradient", "sub", "tan", "tanh", "threefry2x32", "xor", "zeta",
    )
)  # fmt: skip


@rule(*_ELEMENTWISE)
def _elementwise(sizes: Sizes, equation: Any, *values: Padded) -> Any:
    shape = equation.outvars[0].aval.shape
    rank = len(shape)
    of_rank = [_repeated(v, shape) for v in values if v.array.ndim == rank]
    found = aligned(sizes, of_rank, [range(rank)] * len(of_rank))
    layout, rest = found[0].layout, iter(found)
    given = [next(rest) if v.array.ndim == rank else v for v in values]
    out = equation.primitive.bind(*(v.array for v in given), **equation.params)
    if equation.primitive.multiple_results:
        return [Padded(array, layout) for array in out]
    return Padded(out, layout)


def _repeated(value: Padded, shape: Sequence[Any]) -> Padded:
    """Returns an operand with one element along axes that a primitive repeats a symbolic number of
    times.
    """
    pairs = zip(value.layout, shape, strict=True)
    layout = [SAME if axis is None and is_symbolic_dim(n) else axis for axis, n in pairs]
    return replace(value, layout=tuple(layout))


@rule("optimization_barrier")
def _barrier(sizes: Sizes, equation: Any, *values: Padded) -> list[Padded]:
    found = equation.primitive.bind(*(v.array for v in values), **equation.params)
    return [replace(v, array=array) for v, array in zip(values, found, strict=True)]


@rule("random_bits")
def _random_bits(sizes: Sizes, equation: Any, key: Padded) -> Padded:
    shape = equation.params["shape"]
    if any(map(is_symbolic_dim, shape[1:])) or key.array.ndim:
        raise Unpaddable("random numbers depend on the padding of every axis except the first")
    params = {**equation.params, "shape": tuple(map(sizes.padded, shape))}
    return Padded(equation.primitive.bind(key.array, **params), tuple(map(layout_of, shape)))


@rule("cholesky", "triangular_solve")
def _matrices(sizes: Sizes, equation: Any, *values: Padded) -> Any:
    if any(axis is not None for v in values for axis in v.layout[-2:]):
        raise Unpaddable("the matrices themselves are padded")
    found = aligned(sizes, values, [range(values[0].array.ndim - 2)] * len(values))
    out = equation.primitive.bind(*(v.array for v in found), **equation.params)
    if equation.primitive.multiple_results:
        return [Padded(array, found[0].layout) for array in out]
    return Padded(out, found[0].layout)


# Creation -----------------------------------------------------------------------------------------


@rule("dim_as_value")
def _dim_as_value(sizes: Sizes, equation: Any) -> Padded:
    dtype = equation.outvars[0].aval.dtype
    return Padded(jnp.asarray(sizes.true(equation.params["dim"]), dtype), ())


@rule("iota")
def _iota(sizes: Sizes, equation: Any) -> Padded:
    shape, along = equation.params["shape"], equation.params["dimension"]
    held = [
        sizes.padded(n) if axis == along or not is_symbolic_dim(n) else 1
        for axis, n in enumerate(shape)
    ]
    layout = [
        layout_of(n) if axis == along or not is_symbolic_dim(n) else SAME
        for axis, n in enumerate(shape)
    ]
    return Padded(lax.broadcasted_iota(equation.params["dtype"], held, along), tuple(layout))


# Shapes ------------------------------------------------------------------------------------------


@rule("broadcast_in_dim")
def _broadcast_in_dim(sizes: Sizes, equation: Any, value: Padded) -> Padded:
    shape, places = equation.params["shape"], equation.params["broadcast_dimensions"]
    layout: list[Layout] = [SAME if is_symbolic_dim(n) else None for n in shape]
    held = [1 if is_symbolic_dim(n) else n for n in shape]
    for axis, place in enumerate(places):
        if value.layout[axis] is not None:
            layout[place], held[place] = value.layout[axis], value.array.shape[axis]
    return Padded(lax.broadcast_in_dim(value.array, held, places), tuple(layout))


@rule("reshape")
def _reshape(sizes: Sizes, equation: Any, value: Padded) -> Padded:
    if equation.params.get("dimensions") is not None:
        raise Unpaddable("it reorders axes")
    return reshaped(sizes, value, equation.invars[0].aval.shape, equation.params["new_sizes"])


@rule("squeeze")
def _squeeze(sizes: Sizes, equation: Any, value: Padded) -> Padded:
    gone = equation.params["dimensions"]
    layout = [axis for i, axis in enumerate(value.layout) if i not in gone]
    return Padded(lax.squeeze(value.array, gone), tuple(layout))


@rule("tile")
def _tile(sizes: Sizes, equation: Any, value: Padded) -> Padded:
    pairs = zip(equation.params["reps"], value.layout, strict=True)
    if any(count != 1 and axis is not None for count, axis in pairs):
        raise Unpaddable("it repeats a padded axis")
    return replace(value, array=equation.primitive.bind(value.array, **equation.params))


@rule("transpose")
def _transpose(sizes: Sizes, equation: Any, value: Padded) -> Padded:
    order = equation.params["permutation"]
    return Padded(lax.transpose(value.array, order), tuple(value.layout[i] for i in order))
