"""Writes into a copy of an array, at a key."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from calque.ops.table.linear_resample import widened

_DROP: dict[str, Any] = {"mode": "drop", "wrap_negative_indices": False}


def accumulate_at(self: Array, key: Any, values: Any, how: str) -> Array:
    """Adds, multiplies, maximizes or minimizes values into a copy of `self`, at a key.

    Sums and products of half-precision numbers are rounded once, at the end.
    """
    if self.dtype == jnp.bool_ and how in ("add", "multiply"):
        counted = accumulate_at(self.astype(jnp.int32), key, values.astype(jnp.int32), how)
        return counted != 0
    if how in ("add", "multiply") and (wide := widened(self)).dtype != self.dtype:
        return accumulate_at(wide, key, values.astype(wide.dtype), how).astype(self.dtype)
    return getattr(self.at[key], how)(values, **_DROP)


def replace_at(self: Array, key: Any, values: Any) -> Array:
    """Writes values into a copy of `self`, at a key."""
    return self.at[key].set(values, **_DROP)
