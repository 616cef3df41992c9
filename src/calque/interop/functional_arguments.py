"""The arguments of a functional module: arrays, random keys, and Python values."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from calque.device.backend.interop import to_jax
from calque.device.memory.cell import x64
from calque.device.runtime.dtypes import TO_TORCH
from calque.program.signature import value_key


def is_array(value: object) -> bool:
    """Returns True for an array that a tensor can represent."""
    return isinstance(value, jax.Array) and np.dtype(value.dtype) in TO_TORCH


def as_given(leaf: object) -> Any:
    """Returns a leaf of the arguments; one with values as an array."""
    if isinstance(leaf, torch.Tensor):
        return to_jax(leaf)
    # As JAX converts them: without its 64-bit mode, NumPy's int64 becomes int32.
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


def key_of(leaf: Any) -> Any:
    """Returns the properties of a leaf that a trace depends on."""
    if is_array(leaf):
        return (leaf.shape, np.dtype(leaf.dtype))
    return value_key(leaf)


def key_data(rng: object) -> Any:
    """Returns the words of a key.

    Raises:
        TypeError: it is not a key.
    """
    if isinstance(rng, int | np.integer) and not isinstance(rng, bool):
        rng = jax.random.key(int(rng))
    if not isinstance(rng, jax.Array | np.ndarray):
        raise TypeError(_NO_KEY.format(type(rng).__name__))
    words: Any = rng
    if jnp.issubdtype(words.dtype, jax.dtypes.prng_key) and not words.shape:
        words = jax.random.key_data(words)
    if words.dtype != np.uint32 or words.shape not in ((2,), (4,)):
        raise TypeError(_NO_KEY.format(f"{words.dtype}{list(words.shape)}"))
    return words[-2:]


_NO_KEY = "rng must be one JAX key, such as jax.random.key(0), not {}; use jax.vmap for several"


def packed(words: Array) -> Array:
    """Returns the state of the device's generator for a key."""
    with x64():
        wide = words.astype(jnp.uint64)
        return jnp.stack([(wide[0] << 32) | wide[1], jnp.uint64(0)])
