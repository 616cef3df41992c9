"""Prepares index arrays for gathers and scatters.

XLA clamps an index that is out of range. In a rule, a read out of range gives NaN (the least
integer for an integer dtype), and a write is dropped; the eager device checks concrete indices and
raises before a rule runs.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from calque.ops.table.helpers import is_below

_INT32 = 2**31 - 1


def positions(index: Array, size: int, wrap: bool = False) -> Array:
    """Returns indices into an axis, as int32 if the axis allows; an invalid one becomes -1 or
    `size`.

    Args:
        index: integers of any dtype.
        size: the length of the axis.
        wrap: whether -1 stands for the last element.
    """
    narrow = is_below(size, _INT32)
    if jnp.issubdtype(index.dtype, jnp.signedinteger):
        if narrow and index.dtype == jnp.int64:
            index = lax.clamp(jnp.int64(-size - 1), index, jnp.int64(size))
            index = index.astype(jnp.int32)
        elif index.dtype.itemsize < 4:
            index = index.astype(jnp.int32)
        if wrap:
            index = jnp.where(index < 0, index + jnp.asarray(size, index.dtype), index)
        return index
    return index.astype(jnp.int32 if narrow else jnp.int64)


def along(index: Array, dim: int, ndim: int, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Returns the coordinates of every element of `index`; along `dim`, `index` itself."""
    result: list[Array] = []
    for axis in range(ndim):
        if axis == dim:
            result.append(positions(index, shape[dim]))
        else:
            ones = [1] * ndim
            ones[axis] = index.shape[axis]
            result.append(jnp.arange(index.shape[axis], dtype=jnp.int32).reshape(ones))
    return tuple(result)


def on_axis(index: Any, dim: int) -> tuple[Any, ...]:
    """Returns the key that indexes one axis and takes the axes before it whole."""
    return (*(slice(None),) * dim, index)


def take(array: Array, key: Any) -> Array:
    """Gathers elements; an index out of range reads NaN."""
    return array.at[key].get(mode="fill", wrap_negative_indices=False)


def at_least_1d(array: Array) -> Array:
    """Returns a 0-d array as a 1-d array, since PyTorch indexes both."""
    return array.reshape(1) if array.ndim == 0 else array
