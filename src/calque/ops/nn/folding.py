"""Rearranges blocks of an image into columns or channels, and back."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from calque.ops.table.facts import no_kernel
from calque.ops.table.promotion import INT
from calque.ops.table.registry import op


def _columns(x: Array, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Array:
    """Returns the sliding blocks of (batch, channels, height, width) as (batch, channels * kernel,
    blocks)."""
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = kernel, dilation, padding, stride
    batch, channels = x.shape[:2]
    padded = jnp.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    height, width = padded.shape[2:]
    rows, columns = (height - dh * (kh - 1) - 1) // sh + 1, (width - dw * (kw - 1) - 1) // sw + 1
    parts = []
    for i in range(kh):
        for j in range(kw):
            top, left = i * dh, j * dw
            parts.append(
                lax.slice(
                    padded,
                    (0, 0, top, left),
                    (batch, channels, top + (rows - 1) * sh + 1, left + (columns - 1) * sw + 1),
                    (1, 1, sh, sw),
                )
            )
    return jnp.stack(parts, axis=2).reshape(batch, channels * kh * kw, rows * columns)


def _check(kernel: Any, dilation: Any, padding: Any, stride: Any) -> None:
    for name, values, least in (
        ("kernel_size", kernel, 1),
        ("dilation", dilation, 1),
        ("padding", padding, 0),
        ("stride", stride, 1),
    ):
        if len(values) != 2:
            raise RuntimeError(f"It is expected {name} equals to 2, but got size {len(values)}")
        if min(values) < least:
            raise RuntimeError(f"{name} should be at least {least}, but got {list(values)}")


@op("im2col")
def im2col(self: Array, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Array:
    _check(kernel_size, dilation, padding, stride)
    if self.ndim not in (3, 4) or 0 in self.shape[-3:]:
        raise RuntimeError(
            "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero "
            f"dimensions for input, but got: {list(self.shape)}"
        )
    blocks = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, d, p, s in zip(
            self.shape[-2:], kernel_size, dilation, padding, stride, strict=True
        )
    ]
    if min(blocks) < 1:
        raise RuntimeError(
            f"Given input with spatial size {list(self.shape[-2:])}, kernel_size="
            f"{list(kernel_size)}, dilation={list(dilation)}, padding={list(padding)}, calculated "
            f"shape of the array of sliding blocks as {blocks}, but its components must be at "
            "least one."
        )
    image = self if self.ndim == 4 else self[None]
    out = _columns(image, kernel_size, dilation, padding, stride)
    return out if self.ndim == 4 else out[0]


@op("col2im", refuses=no_kernel("col2im_out_cpu", INT))
def col2im(
    self: Array,
    output_size: Any,
    kernel_size: Any,
    dilation: Any,
    padding: Any,
    stride: Any,
) -> Array:
    """Returns the sum of overlapping blocks: the transpose of `im2col`."""
    _check(kernel_size, dilation, padding, stride)
    size = kernel_size[0] * kernel_size[1]
    if self.ndim not in (2, 3) or self.shape[-2] % size:
        raise RuntimeError(
            "Expected size of input's dimension 1 to be divisible by the product of kernel_size, "
            f"but got input.size(1)={self.shape[-2]} and kernel_size={list(kernel_size)}."
        )
    columns = self if self.ndim == 3 else self[None]
    columns = columns.astype(jnp.float32) if self.dtype == jnp.bool_ else columns
    image = jax.ShapeDtypeStruct(
        (columns.shape[0], columns.shape[1] // size, *output_size), columns.dtype
    )
    blocks = 1
    for n, k, d, p, s in zip(output_size, kernel_size, dilation, padding, stride, strict=True):
        blocks *= (n + 2 * p - d * (k - 1) - 1) // s + 1
    if columns.shape[2] != blocks:
        raise RuntimeError(
            f"Given output_size={list(output_size)}, kernel_size={list(kernel_size)}, dilation="
            f"{list(dilation)}, padding={list(padding)}, stride={list(stride)}, expected size of "
            f"input's dimension 2 to match the calculated number of sliding blocks {blocks}, but "
            f"got input.size(2)={columns.shape[2]}."
        )
    (out,) = jax.linear_transpose(
        lambda x: _columns(x, kernel_size, dilation, padding, stride), image
    )(columns)
    out = out.astype(self.dtype)
    return out if self.ndim == 3 else out[0]


@op("pixel_shuffle", layout="images")
def pixel_shuffle(self: Array, upscale_factor: int) -> Array:
    r = upscale_factor
    if self.ndim < 3:
        raise RuntimeError(
            f"pixel_shuffle expects input to have at least 3 dimensions, but got {self.ndim}"
        )
    *lead, channels, height, width = self.shape
    if r <= 0 or channels % (r * r):
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square "
            f"of upscale_factor, but input.size(-3)={channels} is not divisible by {r * r}"
        )
    split = self.reshape(*lead, channels // (r * r), r, r, height, width)
    n = len(lead)
    moved = split.transpose(*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return moved.reshape(*lead, channels // (r * r), height * r, width * r)


@op("pixel_unshuffle", layout="images")
def pixel_unshuffle(self: Array, downscale_factor: int) -> Array:
    r = downscale_factor
    if self.ndim < 3:
        raise RuntimeError(
            f"pixel_unshuffle expects input to have at least 3 dimensions, but got {self.ndim}"
        )
    *lead, channels, height, width = self.shape
    if r <= 0 or height % r or width % r:
        raise RuntimeError(
            "pixel_unshuffle expects height and width to be divisible by downscale_factor, but "
            f"got {height} and {width} for {r}"
        )
    split = self.reshape(*lead, channels, height // r, r, width // r, r)
    n = len(lead)
    moved = split.transpose(*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return moved.reshape(*lead, channels * r * r, height // r, width // r)


@op("channel_shuffle", layout="images")
def channel_shuffle(self: Array, groups: int) -> Array:
    batch, channels, *space = self.shape
    if groups <= 0 or channels % groups:
        raise RuntimeError(
            "Number of channels must be divisible by groups. Got "
            f"{channels} channels and {groups} groups."
        )
    split = self.reshape(batch, groups, channels // groups, *space)
    return split.swapaxes(1, 2).reshape(self.shape)
