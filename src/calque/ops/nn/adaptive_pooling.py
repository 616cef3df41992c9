"""Pooling with windows of different sizes: adaptive, fractional, and unpooling."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.nn.pooling import lowest, positions, scatter_add
from calque.ops.nn.sliding_windows import each
from calque.ops.table.facts import facts, no_kernel
from calque.ops.table.helpers import maximum
from calque.ops.table.linear_resample import Taps, apply_taps, widened
from calque.ops.table.promotion import BOOL, COMPLEX, INT, type_name
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import TensorArgument


def _bounds(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the starts and ends of the windows of an adaptive pooling along an axis."""
    at = np.arange(out)
    return at * size // out, -((-(at + 1) * size) // out)


def _check(x: Array, output_size: Any, ndim: int) -> tuple[int, ...]:
    if x.ndim not in (ndim + 1, ndim + 2) or 0 in x.shape[x.ndim - ndim :]:
        raise RuntimeError(
            f"adaptive pooling: expected a {ndim + 1}D or {ndim + 2}D tensor with non-zero size "
            f"for non-batch dimensions, but got shape {list(x.shape)}"
        )
    if min(output_size) < 0:
        raise RuntimeError("elements of output_size must be greater than or equal to 0")
    return each(output_size, ndim)


def _check_filled(name: str, what: str, x: Array) -> None:
    """Raise RuntimeError for an axis of no elements, other than the first."""
    if 0 in x.shape[1:]:
        raise RuntimeError(
            f"{name}(): Expected {what} to have non-zero size for non-batch dimensions, but "
            f"{what} has sizes {list(x.shape)}"
        )


def _mean_taps(size: int, out: int) -> Taps:
    start, end = _bounds(size, out)
    k = np.arange(int((end - start).max(initial=0)))
    live = k < (end - start)[:, None]
    sources = np.minimum(start[:, None] + k, size - 1)
    return Taps(sources, live / np.maximum(end - start, 1)[:, None], size)


def _adaptive_avg(ndim: int) -> None:
    @op(f"_adaptive_avg_pool{ndim}d")
    def forward(self: Array, output_size: Any) -> Array:
        out = _check(self, output_size, ndim)
        if ndim == 3:
            _check_filled("adaptive_avg_pool3d", "input", self)
        size = self.shape[-ndim:]
        if 0 in out:
            return jnp.zeros((*self.shape[:-ndim], *out), self.dtype)
        if not all(isinstance(n, int) for n in size):
            return _dynamic_mean(self, out)
        if all(n % o == 0 for n, o in zip(size, out, strict=True)):
            return _even_mean(self, size, out)
        return apply_taps(self, [_mean_taps(n, o) for n, o in zip(size, out, strict=True)])

    @op(f"_adaptive_avg_pool{ndim}d_backward")
    def backward(grad_output: Array, self: Array) -> Array:
        _check_filled(f"adaptive_avg_pool{ndim}d_backward", "grad_output", grad_output)
        size, out = self.shape[-ndim:], grad_output.shape[-ndim:]
        if all(n % o == 0 for n, o in zip(size, out, strict=True)):
            share = grad_output / np.asarray(np.prod(size) // np.prod(out), grad_output.dtype)
            lead, spread = self.shape[: self.ndim - ndim], share
            split = [part for o in out for part in (o, 1)]
            full = [part for n, o in zip(size, out, strict=True) for part in (o, n // o)]
            return jnp.broadcast_to(spread.reshape(*lead, *split), (*lead, *full)).reshape(
                self.shape
            )
        taps = [_mean_taps(n, o) for n, o in zip(size, out, strict=True)]
        return apply_taps(grad_output, taps, transpose=True)


def _even_mean(x: Array, size: tuple[int, ...], out: tuple[int, ...]) -> Array:
    lead = x.shape[: x.ndim - len(out)]
    split = [part for n, o in zip(size, out, strict=True) for part in (o, n // o)]
    axes = tuple(range(len(lead) + 1, len(lead) + len(split), 2))
    return jnp.mean(x.reshape(*lead, *split), axis=axes)


def _dynamic_mean(x: Array, out: tuple[int, ...]) -> Array:
    """Returns the means for an image whose sizes are symbolic, in an exported program."""
    found = widened(x)
    for axis, windows in enumerate(out, x.ndim - len(out)):
        at, size = jnp.arange(windows), jnp.asarray(x.shape[axis])
        start, end = at * size // windows, -((-(at + 1) * size) // windows)
        place = jnp.arange(x.shape[axis])
        inside = (place >= start[:, None]) & (place < end[:, None])
        rows = jnp.moveaxis(found, axis, -1)[..., None, :]
        total = jnp.sum(jnp.where(inside, rows, 0), axis=-1)
        found = jnp.moveaxis(total / (end - start).astype(total.dtype), -1, axis)
    return found.astype(x.dtype)


def _window_max(x: Array, reads: list[Array], lives: list[Any]) -> tuple[Array, Array]:
    """Returns maxima and their flat positions, for windows given by the indices (outputs, taps) to
    read along each axis."""
    ndim = len(reads)
    size, lead = x.shape[x.ndim - ndim :], x.ndim - ndim
    at = positions(size)
    alive: Any = np.ones((1,) * (2 * ndim), bool)
    for k, (read, live) in enumerate(zip(reads, lives, strict=True)):
        x = jnp.take(x, read, axis=lead + 2 * k, mode="clip")
        at = jnp.take(at, read, axis=2 * k, mode="clip")
        shape = [1] * (2 * ndim)
        shape[2 * k : 2 * k + 2] = read.shape
        alive = alive & jnp.reshape(live, shape)
    x = jnp.where(alive, x, lowest(x.dtype))
    at = jnp.where(alive, at, np.iinfo(np.int32).max)
    taps = tuple(range(lead + 1, lead + 2 * ndim, 2))
    return _reduce_prefer(x, jnp.broadcast_to(at, x.shape), taps)


def _reduce_prefer(x: Array, at: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Returns the maximum over axes and its position: the first maximum, the last NaN."""
    best = maximum(x, axes, keepdims=True)
    is_best = (x == best) | (x != x)
    first = jnp.min(jnp.where(is_best, at, np.iinfo(np.int32).max), axis=axes)
    last_nan = jnp.max(jnp.where(x != x, at, -1), axis=axes)
    best = jnp.squeeze(best, axes)
    return best, jnp.where(best != best, last_nan, first).astype(np.int64)


def _adaptive_max(ndim: int) -> None:
    name = f"adaptive_max_pool{ndim}d"

    @op(name)
    def forward(self: Array, output_size: Any) -> tuple[Array, Array]:
        out = _check(self, output_size, ndim)
        _check_filled(name, "input", self)
        reads, lives = [], []
        for n, o in zip(self.shape[-ndim:], out, strict=True):
            start, end = _bounds(n, o)
            k = np.arange(int((end - start).max(initial=0)))
            reads.append(np.minimum(start[:, None] + k, n - 1).astype(np.int32))
            lives.append(k < (end - start)[:, None])
        if 0 in out:
            shape = (*self.shape[:-ndim], *out)
            return jnp.zeros(shape, self.dtype), jnp.zeros(shape, np.int64)
        return _window_max(self, reads, lives)

    @op(f"{name}_backward")
    def backward(grad_output: Array, self: Array, indices: Array) -> Array:
        _check_filled(f"{name}_backward", "grad_output", grad_output)
        return scatter_add(grad_output, indices, self.shape, ndim)


def _fractional_starts(sample: Array, size: int, out: int, kernel: int) -> Array:
    """Returns the starts of the windows along one axis, for random numbers of shape (planes,)."""
    at = np.arange(out)
    if out > 1:
        alpha = np.asarray((size - kernel) / (out - 1), sample.dtype)
        offset = jnp.trunc(sample * alpha).astype(np.int32)
        starts = jnp.trunc((at + sample[:, None]) * alpha).astype(np.int32) - offset[:, None]
    else:
        starts = jnp.zeros((sample.shape[0], out), np.int32)
    return jnp.where(at == out - 1, size - kernel, starts)


def _check_samples(self: Array, samples: Array, ndim: int) -> None:
    if samples.dtype != self.dtype:
        raise RuntimeError("Expect _random_samples to have the same dtype as input")
    if samples.ndim != 3:
        raise RuntimeError(f"Expect _random_samples to have 3 dimensions, got {samples.ndim}")
    batch, channels = self.shape[0] if self.ndim == ndim + 2 else 1, self.shape[-ndim - 1]
    if samples.shape[0] < batch:
        raise RuntimeError("Expect _random_samples.size(0) no less then input batch size.")
    if samples.shape[1] != channels:
        raise RuntimeError("Expect _random_samples.size(1) equals to input channel size.")
    if samples.shape[2] != ndim:
        raise RuntimeError(
            f"Expect _random_samples.size(2) equals to {ndim}; got {samples.shape[2]}."
        )


def _fractional(ndim: int) -> None:
    name = f"fractional_max_pool{ndim}d"

    @op(name)
    def forward(
        self: Array, kernel_size: Any, output_size: Any, random_samples: Array
    ) -> tuple[Array, Array]:
        if self.ndim not in (ndim + 1, ndim + 2):
            raise RuntimeError(
                f"{name}(): Expected {ndim + 1}D or {ndim + 2}D tensor, but got: {list(self.shape)}"
            )
        _check_filled(name, "input", self)
        _check_samples(self, random_samples, ndim)
        kernel, out = each(kernel_size, ndim), each(output_size, ndim)
        lead, size = self.shape[: self.ndim - ndim], self.shape[self.ndim - ndim :]
        for n, k, o in zip(size, kernel, out, strict=True):
            if o + k - 1 > n:
                raise RuntimeError(
                    f"fractional_max_pool{ndim}d(): pool size {k} too large relative to input "
                    f"size {n}"
                )
        planes = int(np.prod(lead))
        if planes == 0:
            empty = (*lead, *out)
            return jnp.zeros(empty, self.dtype), jnp.zeros(empty, np.int64)
        flat = jnp.zeros((planes,) + (1,) * (2 * ndim), np.int32)
        samples = random_samples[: planes // self.shape[-ndim - 1]].reshape(planes, ndim)
        for axis in range(ndim):
            # PyTorch draws the width first, then the height; in 3-d the depth is first.
            column = (ndim - 1 - axis) if ndim == 2 else axis
            starts = _fractional_starts(samples[:, column], size[axis], out[axis], kernel[axis])
            read = starts[:, :, None] + np.arange(kernel[axis], dtype=np.int32)
            shape = [planes] + [1] * (2 * ndim)
            shape[1 + axis], shape[1 + ndim + axis] = out[axis], kernel[axis]
            flat = flat * size[axis] + read.reshape(shape)
        at = flat.reshape(planes, math.prod(flat.shape[1:]))
        pixels = self.reshape(planes, math.prod(size))
        values = jnp.take_along_axis(pixels, at, axis=1).reshape(flat.shape)
        best, where = _reduce_prefer(values, flat, tuple(range(1 + ndim, 1 + 2 * ndim)))
        return best.reshape(*lead, *out), where.reshape(*lead, *out)

    @op(f"{name}_backward")
    def backward(
        grad_output: Array, self: Array, kernel_size: Any, output_size: Any, indices: Array
    ) -> Array:
        return scatter_add(grad_output, indices, self.shape, ndim)


def _unpool(x: Array, indices: Array, output_size: Any, ndim: int) -> Array:
    if x.ndim not in (ndim + 1, ndim + 2):
        raise RuntimeError(
            f"Input to max_unpooling{ndim}d should be a {ndim + 1}d or {ndim + 2}d Tensor, but got "
            f"a tensor with {x.ndim} dimensions."
        )
    _check_filled(f"max_unpool{ndim}d", "input", x)
    if indices.dtype != np.int64:
        raise RuntimeError(
            f"elements in indices should be type int64 but got: {type_name(indices.dtype)}"
        )
    if indices.shape != x.shape:
        raise RuntimeError(
            f"Expected shape of indices to be same as that of the input tensor ({list(x.shape)}), "
            f"but got indices tensor with shape: {list(indices.shape)}"
        )
    shape = (*x.shape[:-ndim], *output_size)
    rows = int(np.prod(x.shape[:-ndim]))
    at = indices.reshape(rows, math.prod(x.shape[-ndim:]))
    flat = jnp.zeros((rows, int(np.prod(output_size))), x.dtype)
    row = jnp.arange(rows, dtype=at.dtype)[:, None]
    return flat.at[row, at].set(x.reshape(at.shape), mode="drop").reshape(shape)


def _within_output(
    self: TensorArgument, indices: TensorArgument, output_size: Any, **_: Any
) -> None:
    places = indices.values() if indices.dtype == np.int64 else None
    volume = int(np.prod(list(output_size)))
    if places is not None and not ((places >= 0) & (places < volume)).all():
        raise RuntimeError(
            f"Found an invalid max index: {places.max()} (output volumes are of size "
            f"{'x'.join(map(str, output_size))})"
        )


@op("max_unpool2d", layout="images", values=_within_output)
def max_unpool2d(self: Array, indices: Array, output_size: Any) -> Array:
    return _unpool(self, indices, output_size, 2)


@op("max_unpool3d", values=_within_output)
def max_unpool3d(self: Array, indices: Array, output_size: Any, stride: Any, padding: Any) -> Array:
    return _unpool(self, indices, output_size, 3)


for _ndim in (2, 3):
    _adaptive_avg(_ndim)
    _adaptive_max(_ndim)
    _fractional(_ndim)


facts(
    "_adaptive_avg_pool2d",
    layout="meta_if_strided",
    refuses=no_kernel("adaptive_avg_pool2d", BOOL, INT, COMPLEX),
)
facts("_adaptive_avg_pool2d_backward adaptive_max_pool2d_backward", layout="images", laid_by=(1,))
facts(
    "_adaptive_avg_pool3d",
    layout="meta_if_strided",
    refuses=no_kernel("adaptive_avg_pool3d_cpu", BOOL, INT, COMPLEX),
)
facts("adaptive_max_pool2d adaptive_max_pool3d", layout="meta_if_strided")
