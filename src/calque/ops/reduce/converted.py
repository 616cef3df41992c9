"""Reductions that convert elements first, without a converted copy of a large operand.

On CPUs, XLA makes such a copy, which for a sum of int8 is eight times as large as the operand. So a
large operand is reduced piece by piece.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from calque.ops.table.helpers import is_known

LARGE = 2**24
"""The number of bytes from which a converted operand is reduced in pieces."""

PIECE = 2**22
"""The number of bytes of a converted piece."""


def reduce(
    x: Array,
    convert: Callable[[Array], Array],
    function: Callable[..., Array],
    combine: Callable[[Array, Array], Array],
    axes: tuple[int, ...],
) -> Array:
    """Returns `function(convert(x), axes)`, which keeps the reduced axes.

    Args:
        x: the operand.
        convert: an elementwise conversion to the dtype of the result.
        function: reduces an array over axes, and keeps them.
        combine: combines the results of two parts.
        axes: the reduced axes; at least one if the operand is large.
    """
    itemsize = convert(x[:0] if x.ndim else x).dtype.itemsize
    if not all(map(is_known, x.shape)) or x.size * itemsize < LARGE or not axes:
        return function(convert(x), axes)
    axis = max(axes, key=lambda a: x.shape[a])
    across = math.prod(x.shape) // x.shape[axis] * itemsize
    length = max(PIECE // across, 1)
    count = x.shape[axis] // length

    def reduced(part: Array) -> Array:
        return function(convert(part), axes)

    def step(i: Array, total: Array) -> Array:
        part = lax.dynamic_slice_in_dim(x, i * length, length, axis)
        return combine(total, reduced(part))

    none = lax.slice_in_dim(x, 0, 0, axis=axis)
    total = lax.fori_loop(jnp.int64(0), jnp.int64(count), step, reduced(none))
    rest = lax.slice_in_dim(x, count * length, x.shape[axis], axis=axis)
    return combine(total, reduced(rest)) if rest.size else total
