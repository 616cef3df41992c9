"""A faster implementation of JAX's random bits for CPUs, with the same numbers for the same keys.

For CPUs, JAX compiles the Threefry hash as three loops over arrays in memory for each draw. As one
expression, it takes a third of the time to compile and to run. Keys of this implementation behave
like JAX's own, and are used only in calque's rules.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.upstream.jax_internals import extend_random, threefry

_JAXS = "threefry2x32"
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_DTYPES = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def wrapped(data: Array) -> Array:
    """Returns the key of two 32-bit words, for calque's rules.

    Args:
        data: uint32 [2].
    """
    return jax.random.wrap_key_data(data, impl=_FAST if _is_fast() else _JAXS)


def as_jaxs(key: Array) -> Array:
    """Returns an ordinary JAX key that gives the same numbers."""
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_JAXS)


def _is_fast() -> bool:
    # Without this setting, JAX assigns the counters to elements differently.
    return jax.default_backend() == "cpu" and jax.config.jax_threefry_partitionable


@jax.jit
def _hashed(data: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """Returns Threefry-2x32 with 20 rounds (Salmon et al., 2011) of 64-bit counters, as in JAX.

    Args:
        data: uint32 [2], the key.
        high, low: the words of the counters, uint32 of the same shape.
    """
    first, second = data[0], data[1]
    keys = first, second, first ^ second ^ _PARITY
    x, y = high + first, low + second
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(distance)) | (y >> np.uint32(32 - distance)))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def _counters(shape: tuple[int, ...]) -> Array:
    """Returns the position of each element, as a sum over the axes, which can be sharded."""
    total = jnp.zeros(shape, np.uint32)
    for axis, stride in enumerate(math.prod(shape[axis + 1 :]) for axis in range(len(shape))):
        total = total + lax.broadcasted_iota(np.uint32, shape, axis) * np.uint32(stride)
    return total


def _is_countable(shape: Any) -> bool:
    """Returns True if 32 bits can count the elements; sizes in exported programs may be
    symbolic."""
    return all(isinstance(n, int) for n in shape) and math.prod(shape) < 2**32


def _random_bits(data: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    if not _is_fast() or not _is_countable(shape):
        return threefry.random_bits(data, bit_width, shape)
    # The barrier keeps XLA from recomputing the bits in each consumer.
    x, y = lax.optimization_barrier(_hashed(data, jnp.zeros(shape, np.uint32), _counters(shape)))
    dtype = _DTYPES[bit_width]
    if bit_width == 64:
        return (x.astype(dtype) << np.uint64(32)) | y.astype(dtype)
    return (x ^ y).astype(dtype)


def _fold_in(data: Array, number: Array) -> Array:
    number = jnp.asarray(number, np.uint32)
    return jnp.stack(_hashed(data, jnp.zeros((), np.uint32), number))


def _split(data: Array, shape: tuple[int, ...]) -> Array:
    if not _is_fast() or not _is_countable(shape):
        return threefry.split(data, shape)
    return jnp.stack(_hashed(data, jnp.zeros(shape, np.uint32), _counters(shape)), axis=-1)


_FAST: Any = extend_random.define_prng_impl(
    key_shape=(2,),
    seed=threefry.seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="calque_threefry2x32",
    tag="calque",
)
