"""Rules for the primitives that combine elements along axes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from calque.dynamo.buckets.padding.padded import (
    Padded,
    Sizes,
    Unpaddable,
    aligned,
    filled,
    layout_of,
    spread,
)
from calque.dynamo.buckets.padding.table import rule


def least(dtype: Any) -> Any:
    """Returns the least value of a dtype."""
    if dtype == np.bool_:
        return False
    return -jnp.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).min


def greatest(dtype: Any) -> Any:
    """Returns the greatest value of a dtype."""
    if dtype == np.bool_:
        return True
    return jnp.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).max


def _ones(dtype: Any) -> Any:
    return True if dtype == np.bool_ else np.array(-1).astype(dtype)


_NEUTRAL: dict[str, Callable[[Any], Any]] = {
    "reduce_sum": lambda dtype: 0,
    "reduce_prod": lambda dtype: 1,
    "reduce_max": least,
    "reduce_min": greatest,
    "reduce_or": lambda dtype: 0,
    "reduce_xor": lambda dtype: 0,
    "reduce_and": _ones,
    "argmax": least,
    "argmin": greatest,
    "cumsum": lambda dtype: 0,
    "cumprod": lambda dtype: 1,
    "cummax": least,
    "cummin": greatest,
    "cumlogsumexp": least,
}
"""The neutral element of each reduction."""


def neutral(
    sizes: Sizes, equation: Any, value: Padded, axes: Sequence[int], fill: Any = None
) -> Padded:
    """Returns an operand with the padding of these axes replaced by the neutral element."""
    for axis in axes:
        value = spread(sizes, value, axis, layout_of(equation.invars[0].aval.shape[axis]))
    if fill is None:
        fill = _NEUTRAL[equation.primitive.name](value.array.dtype)
    return filled(sizes, value, axes, fill)


@rule(*(f"reduce_{name}" for name in ("sum", "prod", "max", "min", "or", "xor", "and")))
def _reduce(sizes: Sizes, equation: Any, value: Padded) -> Padded:
    axes = equation.params["axes"]
    value = neutral(sizes, equation, value, axes)
    layout = [axis for i, axis in enumerate(value.layout) if i not in axes]
    return Padded(equation.primitive.bind(value.array, **equation.params), tuple(layout))


@rule("argmax", "argmin")
def _argument(sizes: Sizes, equation: Any, value: Padded) -> Padded:
    if any(len(value.layout[axis] or ()) > 1 for axis in equation.params["axes"]):
        raise Unpaddable("it returns indices along an axis that is padded in several places")
    return _reduce(sizes, equation, value)


@rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulative(sizes: Sizes, equation: Any, value: Padded) -> Padded:
    value = neutral(sizes, equation, value, [equation.params["axis"]])
    return replace(value, array=equation.primitive.bind(value.array, **equation.params))


@rule("sort")
def _sort(sizes: Sizes, equation: Any, *values: Padded) -> list[Padded]:
    """Sorts padding last, with a mask of the padding as the first key."""
    axis, shape = equation.params["dimension"], equation.invars[0].aval.shape
    rank = len(shape)
    if values[0].layout[axis] is None:
        found = aligned(sizes, values, [range(rank)] * len(values))
        arrays = equation.primitive.bind(*(v.array for v in found), **equation.params)
        return [Padded(a, v.layout) for a, v in zip(arrays, found, strict=True)]
    values = tuple(spread(sizes, v, axis, layout_of(shape[axis])) for v in values)
    found = aligned(sizes, values, [range(rank)] * len(values))
    behind = Padded(jnp.zeros(found[0].array.shape, bool), found[0].layout)
    behind = filled(sizes, behind, [axis], True)
    params = {**equation.params, "num_keys": equation.params["num_keys"] + 1}
    _, *arrays = equation.primitive.bind(behind.array, *(v.array for v in found), **params)
    layout = list(found[0].layout)
    layout[axis] = layout_of(shape[axis])
    return [Padded(array, tuple(layout)) for array in arrays]


@rule("top_k")
def _top_k(sizes: Sizes, equation: Any, value: Padded) -> list[Padded]:
    axis = equation.params["axis"] % value.array.ndim
    if value.layout[axis] is not None:
        raise Unpaddable("it takes the maximum along a padded axis")
    return [
        Padded(a, value.layout) for a in equation.primitive.bind(value.array, **equation.params)
    ]
