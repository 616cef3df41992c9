"""Reinterprets the bytes of an array as a different dtype."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.device.memory.geometry import Ints
from calque.device.runtime.compile_cache import kept


def retype(flat: Array, dtype: np.dtype) -> Array:
    """Returns the bytes of a one-axis array as a different dtype."""
    source, target = np.dtype(flat.dtype), np.dtype(dtype)
    return flat if source == target else _retyper(flat.shape, source, target)(flat)


@kept
def _retyper(shape: Ints, source: np.dtype, target: np.dtype) -> Callable[[Array], Array]:
    part = _part(target)  # JAX can differentiate through complex numbers and their parts

    def retyped(flat: Array) -> Array:
        if source != _part(source):
            flat = jnp.stack([flat.real, flat.imag], axis=-1).reshape(-1)
        if flat.dtype != part:
            flat = _from_bytes(_to_bytes(flat), part)
        if part == target:
            return flat
        pairs = flat.reshape(-1, 2)
        return lax.complex(pairs[:, 0], pairs[:, 1])

    return jax.jit(retyped)


def _part(dtype: np.dtype) -> np.dtype:
    """Returns the dtype of the parts of complex numbers; other dtypes unchanged."""
    is_complex = np.issubdtype(dtype, np.complexfloating)
    return np.dtype(f"float{dtype.itemsize * 4}") if is_complex else dtype


def _to_bytes(flat: Array) -> Array:
    if flat.dtype == np.bool_:
        return flat.astype(jnp.uint8)
    return lax.bitcast_convert_type(flat, jnp.uint8).reshape(-1)


def _from_bytes(raw: Array, dtype: np.dtype) -> Array:
    if dtype == np.bool_:
        return raw != 0
    if dtype.itemsize == 1:
        return lax.bitcast_convert_type(raw, dtype)
    return lax.bitcast_convert_type(raw.reshape(-1, dtype.itemsize), dtype)
