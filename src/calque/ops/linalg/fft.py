"""Discrete Fourier transforms: real to complex, complex to real, complex to complex."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from calque.ops.table.helpers import wrap_dim
from calque.ops.table.promotion import complex_dtype, real_dtype
from calque.ops.table.registry import op
from calque.ops.table.unsharded_axes import undivided

_NONE, _BY_ROOT, _BY_SIZE = 0, 1, 2
_MOST = 3  # axes of one XLA transform


def _scale(array: Array, size: int, normalization: int) -> Array:
    if normalization == _NONE:
        return array
    factor = 1 / math.sqrt(size) if normalization == _BY_ROOT else 1 / size
    return array * jnp.asarray(factor, real_dtype(array.dtype))


def _transform(array: Array, dims: list[int], kind: Any, lengths: tuple[int, ...]) -> Array:
    """Returns one XLA transform of the given axes (for real data, the last one is halved)."""
    last = list(range(array.ndim - len(dims), array.ndim))
    moved = array if dims == last else jnp.moveaxis(array, dims, last)
    moved = _fft(moved, kind, lengths)
    return moved if dims == last else jnp.moveaxis(moved, last, dims)


def _fft(array: Array, kind: Any, lengths: tuple[int, ...]) -> Array:
    """Returns a transform of the last axes.

    On several devices, the transformed axes stay whole and the batch axes become one axis: with
    several, XLA's partitioner gives its CPU transforms a layout that they refuse.
    """
    if jax.device_count() == 1:
        return lax.fft(array, kind, lengths)
    first = array.ndim - len(lengths)
    axes = range(1, 1 + len(lengths))
    batches = array.reshape(math.prod(array.shape[:first]), *array.shape[first:])
    found = undivided(lax.fft(undivided(batches, axes), kind, lengths), axes)
    return found.reshape(*array.shape[:first], *found.shape[1:])


def _complex(array: Array, dims: list[int], forward: bool) -> Array:
    """Returns the unnormalized complex transform of any number of axes."""
    kind = lax.FftType.FFT if forward else lax.FftType.IFFT
    for start in range(0, len(dims), _MOST):
        group = sorted(dims[start : start + _MOST])
        array = _transform(array, group, kind, tuple(array.shape[d] for d in group))
    if not forward:
        array = array * jnp.asarray(_sizes(array, dims), real_dtype(array.dtype))
    return array


def _sizes(array: Array, dims: list[int]) -> int:
    return math.prod(array.shape[d] for d in dims)


@op("_fft_c2c", layout="transform", writes=("copies",))
def fft_c2c(self: Array, dim: Any, normalization: int, forward: bool) -> Array:
    dims = [wrap_dim(d, self.ndim) for d in dim]
    if not dims:
        return self
    return _scale(_complex(self, dims, forward), _sizes(self, dims), normalization)


@op("_fft_r2c", layout="transform", writes=("copies",))
def fft_r2c(self: Array, dim: Any, normalization: int, onesided: bool) -> Array:
    dims = [wrap_dim(d, self.ndim) for d in dim]
    size = _sizes(self, dims)
    if not onesided:
        result = _complex(self.astype(complex_dtype(self.dtype)), dims, True)
        return _scale(result, size, normalization)
    halved = dims[-1]
    result = _transform(self, [halved], lax.FftType.RFFT, (self.shape[halved],))
    if len(dims) > 1:
        result = _complex(result, dims[:-1], True)
    return _scale(result, size, normalization)


@op("_fft_c2r", layout="transform", writes=("computes_first", "copies"))
def fft_c2r(self: Array, dim: Any, normalization: int, last_dim_size: int) -> Array:
    dims = [wrap_dim(d, self.ndim) for d in dim]
    halved = dims[-1]
    array = _complex(self, dims[:-1], False) if len(dims) > 1 else self
    kept = last_dim_size // 2 + 1
    missing = kept - array.shape[halved]
    if missing > 0:
        padding = [(0, missing if d == halved else 0) for d in range(array.ndim)]
        array = jnp.pad(array, padding)
    array = lax.slice_in_dim(array, 0, kept, axis=halved)
    result = _transform(array, [halved], lax.FftType.IRFFT, (last_dim_size,))
    result = result * jnp.asarray(last_dim_size, result.dtype)
    return _scale(result, _sizes(result, dims), normalization)
