"""The effect of a write to elements that overlap in memory."""

from collections.abc import Iterable

import jax.numpy as jnp
from jax import Array, lax

from calque.ops.table.helpers import first_position


def is_changed(before: Array, value: Array) -> Array:
    """Returns a mask of changed elements; zeros of different sign differ, and all NaNs are
    equal.
    """
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        return is_changed(before.real, value.real) | is_changed(before.imag, value.imag)
    same = value == before
    if jnp.issubdtype(value.dtype, jnp.inexact):
        same &= jnp.signbit(value) == jnp.signbit(before)
        same |= jnp.isnan(value) & jnp.isnan(before)
    return ~same


def last_change(before: Array, value: Array, repeated: Iterable[int]) -> Array:
    """Returns a value in which the last change along the repeated axes is at all their indices.

    Args:
        before: the old value.
        value: the written value, of the same shape.
        repeated: the axes along which `before` is constant.
    """
    changed = is_changed(before, value)
    for axis in repeated:
        last = (
            changed.shape[axis]
            - 1
            - first_position(lax.argmax, jnp.flip(changed, axis), axis, True)
        )
        value = jnp.take_along_axis(value, last, axis)
        changed = changed.any(axis, keepdims=True)
    return jnp.broadcast_to(value, before.shape)
