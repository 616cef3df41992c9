"""Convolutions as slices, sums and matrix products, where XLA's convolutions on CPUs are slow.

XLA's CPU convolutions are made for dense kernels over large images. Depthwise convolutions take 25
to 70 times as long as in PyTorch, images smaller than the kernel 70 times, and the gradients of
grouped convolutions 300 times. Here these are computed as

- a matrix product over the channels, for a 1x1 kernel;
- a sum of shifted products, for depthwise convolutions;
- a matrix product over all positions of the kernel, for small images;
- a sum of matrix products, one for each position, for the gradients of grouped convolutions.

All forms have the channels as the last axis, so that the innermost loops run over them. The choice
depends only on shapes and dtypes, and every form can be differentiated again.
"""

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.ops.nn import strided_parts
from calque.ops.table.linear_resample import widened

Ints = tuple[int, ...]

_MOST_TAPS = 128  # each adds several equations to the program
_SMALL = 16  # positions of an image, in the forward pass; for larger ones XLA is as fast
_SMALL_BACKWARD = 64
_WIDE = 64  # channels
_ROWS = 2  # read in one iteration of the sums


class Like(Protocol):
    """An array, or the shape and dtype of one."""

    @property
    def shape(self) -> Ints: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> Any: ...


@dataclass(frozen=True)
class Sliding:
    """How a kernel moves over the axes of an image: one number for each axis.

    Attributes:
        stride: positions of the image from one result to the next.
        padding: zeros at both ends of the image.
        dilation: positions of the image from one position of the kernel to the next.
        groups: the number of groups of channels.
    """

    stride: Ints
    padding: Ints
    dilation: Ints
    groups: int

    def out(self, size: Ints, kernel: Ints) -> Ints:
        """Returns the number of results along each axis."""
        rows = zip(size, kernel, self.stride, self.padding, self.dilation, strict=True)
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in rows)


def applies(x: Like, weight: Like) -> bool:
    """Returns True if one of the forms may be faster than XLA's convolution.

    Args:
        x: (batch, channels, *size).
        weight: (out, channels / groups, *kernel).
    """
    if jax.default_backend() != "cpu" or not jnp.issubdtype(x.dtype, jnp.floating):
        return False
    # Sizes may be symbolic in exports.
    known = all(isinstance(n, int) for n in (*x.shape[1:], *weight.shape))
    if not known or x.ndim < 3 or x.shape[0] == 0:
        return False
    return min(*x.shape[1:], *weight.shape) > 0


def forward(x: Array, weight: Array, how: Sliding) -> Array | None:
    """Returns the convolution, computed by the best form; None if XLA's convolution is best.

    Args:
        x: (batch, channels, *size).
        weight: (out, channels / groups, *kernel).
        how: see `Sliding`.
    """
    form = _form(x, weight, how, _SMALL)
    return None if form is None else _applied(form, x, weight, how)


def input_gradient(grad: Array, x: Like, weight: Array, how: Sliding) -> Array | None:
    """Like `forward`, for the gradient of the input, which is a transposed convolution of `grad`.

    Args:
        grad: (batch, out, *results).
        x: an array of the gradient's shape.
        weight: (out, channels / groups, *kernel).
        how: see `Sliding`.
    """
    if is_depthwise(x, weight, how) and math.prod(how.stride) <= _MOST_TAPS:
        made = _depthwise_input(widened(_last(grad)), x.shape[2:], widened(weight), how)
        return _together(jnp.moveaxis(made, -1, 1).astype(grad.dtype), x.shape[1])
    form = _backward_form(x, weight, how)
    if form is None:
        return None
    (found,) = jax.linear_transpose(lambda one: _applied(form, one, weight, how), x)(grad)
    return found


def weight_gradient(grad: Array, x: Array, weight: Like, how: Sliding) -> Array | None:
    """Like `forward`, for the gradient of the kernel; only the shape and dtype of `weight`
    matter."""
    if is_depthwise(x, weight, how):
        made = _depthwise_weight(widened(_last(grad)), widened(_last(x)), weight.shape[2:], how)
        return made.reshape(weight.shape).astype(weight.dtype)
    form = _backward_form(x, weight, how)
    if form is None:
        return None
    (found,) = jax.linear_transpose(lambda one: _applied(form, x, one, how), weight)(grad)
    return found


def is_pointwise(weight: Like, how: Sliding) -> bool:
    """Returns True if each result depends only on the channels at one position."""
    return how.groups == 1 and set(weight.shape[2:]) == {1} and set(how.padding) == {0}


def is_depthwise(x: Like, weight: Like, how: Sliding) -> bool:
    """Returns True if each channel has separate kernels."""
    own = how.groups == x.shape[1] > 1 and weight.shape[1] == 1
    return own and math.prod(weight.shape[2:]) <= _MOST_TAPS


def _form(x: Like, weight: Like, how: Sliding, small: int) -> Any:
    """Returns the form for a convolution; images of at most `small` results count as small."""
    if is_pointwise(weight, how):
        return _pointwise
    if is_depthwise(x, weight, how):
        return _depthwise
    size, kernel = x.shape[2:], weight.shape[2:]
    if math.prod(kernel) > _MOST_TAPS:
        return None
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, how.dilation, strict=True)]
    below = any(n < r for n, r in zip(size, reach, strict=True))
    wide = how.groups == 1 and weight.shape[1] >= _WIDE
    if below or (wide and math.prod(how.out(size, kernel)) <= small):
        return _unfolded if how.groups == 1 else _grouped
    return None


def _backward_form(x: Like, weight: Like, how: Sliding) -> Any:
    form = _form(x, weight, how, _SMALL_BACKWARD)
    if form is None and how.groups > 1 and math.prod(weight.shape[2:]) <= _MOST_TAPS:
        return _grouped
    return form


# The forms: (batch, *size, channels) to (batch, *results, out), in at least float32 ---------------


def _applied(form: Any, x: Array, weight: Array, how: Sliding) -> Array:
    """Returns a form's result for operands in PyTorch's layout."""
    made = form(widened(_last(x)), widened(weight), how)
    return jnp.moveaxis(made, -1, 1).astype(x.dtype)


def _last(x: Array) -> Array:
    return jnp.moveaxis(x, 1, -1)


def _together(grad: Array, channels: int) -> Array:
    """Returns the sum over the kernels of each channel; (batch, out,
    *size) to (batch, channels, *size).
    """
    batch, out, *size = grad.shape
    if out == channels:
        return grad
    return grad.reshape(batch, channels, out // channels, *size).sum(axis=2)


def _padded(x: Array, padding: Ints) -> Array:
    if not any(padding):
        return x
    ends = [(0, 0, 0), *((p, p, 0) for p in padding), (0, 0, 0)]
    return lax.pad(x, jnp.zeros((), x.dtype), ends)  # negative padding crops


def _parts(x: Array, kernel: Ints, how: Sliding) -> list[Array]:
    """Returns the part of the image that each position of the kernel is multiplied with."""
    out = how.out(x.shape[1:-1], kernel)
    x = _padded(x, how.padding)
    found = []
    for position in itertools.product(*map(range, kernel)):
        start = [i * d for i, d in zip(position, how.dilation, strict=True)]
        rows = zip(start, out, how.stride, strict=True)
        stop = [b + (n - 1) * s + 1 for b, n, s in rows]
        limits = (x.shape[0], *stop, x.shape[-1])
        found.append(lax.slice(x, (0, *start, 0), limits, (1, *how.stride, 1)))
    return found


def _pointwise(x: Array, weight: Array, how: Sliding) -> Array:
    (x,) = _parts(x, weight.shape[2:], how)
    return _over_channels(x, weight.reshape(weight.shape[:2]))


def _over_channels(x: Array, weight: Array) -> Array:
    """Multiplies (..., channels) and (out, channels) to (..., out)."""
    return lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())))


def _rows_of(weight: Array) -> Array:
    """Returns the kernels with their channels last: (positions of the kernel, out).

    XLA would fuse a transposition into each product, with scattered reads. The loop materializes
    the transposed kernels.

    Args:
        weight: (out, 1, *kernel).
    """
    out, _, *kernel = weight.shape
    turns = kernel[0] if kernel[0] > 1 else math.prod(kernel)  # XLA removes a loop of one iteration
    weight = weight.reshape(out, turns, -1)
    indices = jnp.arange(turns, dtype=np.int32)
    rows = lax.map(lambda i: lax.dynamic_index_in_dim(weight, i, 1, keepdims=False).T, indices)
    return rows.reshape(-1, out)


def _depthwise(x: Array, weight: Array, how: Sliding) -> Array:
    kernel = weight.shape[2:]
    taps = _rows_of(weight)
    x = jnp.repeat(x, weight.shape[0] // x.shape[-1], axis=-1)
    products = [part * tap for part, tap in zip(_parts(x, kernel, how), taps, strict=True)]
    return functools.reduce(jnp.add, products)


def _depthwise_input(grad: Array, size: Ints, weight: Array, how: Sliding) -> Array:
    """Returns the gradient of the image, (batch, *size, out), separately for each kernel of a
    channel.
    """
    kernel, windows = weight.shape[2:], grad.shape[1:-1]
    taps = _rows_of(weight)
    counts = strided_parts.counts(size, how.padding, how.stride)
    reach = strided_parts.reach(kernel, how.stride, how.dilation)
    shape = (grad.shape[0], *counts, grad.shape[-1])
    grad = strided_parts.with_windows_beside(grad, np.zeros((), grad.dtype), reach, counts)
    parts = []
    for met in strided_parts.moves(kernel, how.stride, how.dilation):
        total: Any = None
        for t, move in met:
            product = strided_parts.moved(grad, move, reach, counts) * taps[t]
            given = strided_parts.is_given(move, counts, windows)
            if given is not None:  # 0 * infinity would be NaN
                product = jnp.where(given, product, 0)
            total = product if total is None else total + product
        parts.append(jnp.zeros(shape, grad.dtype) if total is None else total)
    return strided_parts.whole(parts, size, how.padding, how.stride)


def _unfolded(x: Array, weight: Array, how: Sliding) -> Array:
    """Returns one product over all positions of the kernel; the smaller operand is unfolded."""
    out, _, *kernel = weight.shape
    parts = _parts(x, tuple(kernel), how)
    if isinstance(x.shape[0], int) and parts[0].size < weight.size // math.prod(kernel):
        met = jnp.stack(parts, axis=-1)
        return _over_channels(met.reshape(*met.shape[:-2], -1), weight.reshape(out, -1))
    columns = jnp.moveaxis(weight, (0, 1), (-1, -2)).reshape(-1, out)
    met = jnp.concatenate(parts, axis=-1)
    return lax.dot_general(met, columns, (((met.ndim - 1,), (0,)), ((), ())))


def _grouped(x: Array, weight: Array, how: Sliding) -> Array:
    out, own, *kernel = weight.shape
    groups = how.groups
    taps = weight.reshape(groups, out // groups, own, -1)
    total: Any = 0
    for at, part in enumerate(_parts(x, tuple(kernel), how)):
        apart = part.reshape(*part.shape[:-1], groups, own)
        total = total + jnp.einsum("...gi,goi->...go", apart, taps[..., at])
    return total.reshape(*total.shape[:-2], out)


def _depthwise_weight(grad: Array, x: Array, kernel: Ints, how: Sliding) -> Array:
    """Returns the gradient of kernels for each channel: (out, positions of the kernel).

    The loop multiplies one row of the image after another with its gradient, and adds the products
    to one sum for each position of the kernel. The sums and the rows stay in the processor's cache.

    Args:
        grad: (batch, *results, out).
        x: (batch, *size, channels).
        kernel: the sizes of the kernel.
        how: see `Sliding`.
    """
    batch, *rows, width, out = grad.shape
    x = _padded(jnp.repeat(x, out // x.shape[-1], axis=-1), how.padding)
    *steps, step = how.stride
    *gaps, gap = how.dilation
    *outer, inner = kernel
    span = (width - 1) * step + 1

    def row(array: Array, place: list[Any]) -> Array:
        start = [*place, 0, 0]
        return lax.dynamic_slice(array, start, (1,) * len(place) + array.shape[-2:]).reshape(
            array.shape[-2:]
        )

    def add(turn: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        place = []
        for size in reversed(rows):
            place.append(turn % size)
            turn = turn // size
        place.append(turn)
        image, *at = reversed(place)
        gradient = row(grad, [image, *at])
        made = []
        for offset in itertools.product(*map(range, outer)):
            moved = zip(at, steps, offset, gaps, strict=True)
            line = row(x, [image, *(a * s + o * g for a, s, o, g in moved)])
            for k in range(inner):
                met = lax.slice(line, (k * gap, 0), (k * gap + span, out), (step, 1))
                made.append(sums[len(made)] + met * gradient)
        return tuple(made)

    start = tuple(jnp.zeros((width, out), grad.dtype) for _ in range(math.prod(kernel)))
    # With several rows in an iteration, the sums are read and written less often.
    unroll = _ROWS if isinstance(batch, int) else None
    sums = lax.fori_loop(0, batch * math.prod(rows), add, start, unroll=unroll)
    return jnp.stack([one.sum(axis=0) for one in sums], axis=1)
