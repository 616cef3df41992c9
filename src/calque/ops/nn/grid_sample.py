"""Samples an image at the points of a grid, with the gradients of both."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.table.facts import facts, no_kernel
from calque.ops.table.linear_resample import widened
from calque.ops.table.promotion import BOOL, COMPLEX, INT, type_name
from calque.ops.table.registry import op

BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


def _unnormalize(at: Array, size: int, align: bool) -> Array:
    return (at + 1) / 2 * (size - 1) if align else ((at + 1) * size - 1) / 2


def _clip(at: Array, size: int) -> Array:
    """Clips positions to the image; as in PyTorch, there is no gradient on the border itself."""
    return jnp.where(at <= 0, 0, jnp.where(at >= size - 1, size - 1, at)).astype(at.dtype)


def _reflect(at: Array, size: int, align: bool) -> Array:
    low, high = (0, 2 * (size - 1)) if align else (-1, 2 * size - 1)
    if low == high:
        return jnp.zeros_like(at)
    start, span = low / 2, (high - low) / 2
    away = jnp.abs(at - start)
    flips = jnp.floor(away / span)
    extra = away - flips * span
    return jnp.where(flips % 2 == 0, extra + start, span - extra + start)


def _inside(at: Array, size: int, padding: int, align: bool) -> Array:
    if padding == REFLECTION:
        at = _reflect(at, size, align)
    if padding != ZEROS:
        at = _clip(at, size)
        at = jnp.where(jnp.isnan(at), 0, at)
    return at


def _just_outside(at: Array, size: int) -> Array:
    """Returns positions of which those far outside are near, where no weight overflows.

    PyTorch's kernel for volumes reads no weight of a pixel outside; that for images does.
    """
    return jnp.clip(jnp.where(jnp.isnan(at), -2, at), -2, size + 1)


def _read(image: Array, at: tuple[Array, ...]) -> Array:
    """Returns the pixels (batch, channels, *points) at integer positions (batch, *points), 0
    outside."""
    space = image.shape[2:]
    flat = jnp.zeros(at[0].shape, np.int32)
    ok = jnp.ones(at[0].shape, bool)
    for position, size in zip(at, space, strict=True):
        ok = ok & (position >= 0) & (position <= size - 1)
        index = jnp.clip(jnp.where(jnp.isnan(position), -1, position), -1, size).astype(np.int32)
        flat = flat * size + index
    batch, channels = image.shape[:2]
    pixels = int(np.prod(space))
    where = jnp.where(ok, flat, pixels).reshape(batch, math.prod(at[0].shape[1:]))
    rows = image.reshape(batch, channels, pixels)
    taken = jax.vmap(lambda row, index: row.at[:, index].get(mode="fill", fill_value=0))(
        rows, where
    )
    return taken.reshape(batch, channels, *at[0].shape[1:])


def _linear(image: Array, at: tuple[Array, ...]) -> Array:
    lows = tuple(jnp.floor(jax.lax.stop_gradient(a)) for a in at)
    total: Any = 0
    for corner in np.ndindex(*(2,) * len(at)):
        weight: Any = 1
        for position, low, side in zip(at, lows, corner, strict=True):
            weight = weight * (position - low if side else low + 1 - position)
        place = tuple(low + side for low, side in zip(lows, corner, strict=True))
        total = total + _read(image, place) * weight[:, None]
    return total


def _cubic(image: Array, at: tuple[Array, ...], padding: int, align: bool) -> Array:
    (y, x), a = at, -0.75
    lows = tuple(jnp.floor(jax.lax.stop_gradient(p)) for p in (y, x))

    def weights(part: Array) -> list[Array]:
        def near(t: Array) -> Array:
            return ((a + 2) * t - (a + 3)) * t * t + 1

        def far(t: Array) -> Array:
            return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

        return [far(part + 1), near(part), near(1 - part), far(2 - part)]

    height, width = image.shape[2:]
    total: Any = 0
    for i, wy in enumerate(weights(y - lows[0])):
        for j, wx in enumerate(weights(x - lows[1])):
            row = _inside(lows[0] + (i - 1), height, padding, align)
            column = _inside(lows[1] + (j - 1), width, padding, align)
            total = total + _read(image, (row, column)) * (wy * wx)[:, None]
    return total


def _sample(image: Array, grid: Array, mode: int, padding: int, align: bool) -> Array:
    dtype, image, grid = image.dtype, widened(image), widened(grid)
    space = image.shape[2:]
    # Grid coordinates begin with x; x is the image's last axis.
    at = tuple(
        _unnormalize(grid[..., len(space) - 1 - k], size, align) for k, size in enumerate(space)
    )
    if mode == BICUBIC:
        return _cubic(image, at, padding, align).astype(dtype)
    at = tuple(_inside(a, size, padding, align) for a, size in zip(at, space, strict=True))
    if mode == NEAREST:
        return _read(image, tuple(jnp.round(a) for a in at)).astype(dtype)
    if padding == ZEROS and len(space) == 3:
        at = tuple(_just_outside(a, size) for a, size in zip(at, space, strict=True))
    return _linear(image, at).astype(dtype)


def _check(x: Array, grid: Array, dims: int, mode: int) -> None:
    if x.ndim != dims + 2 or grid.ndim != dims + 2 or grid.shape[-1] != dims:
        raise RuntimeError(
            f"grid_sampler(): expected {dims + 2}D input and a grid with size {dims} in the last "
            f"dimension, but got input of {list(x.shape)} and grid of {list(grid.shape)}"
        )
    if x.shape[0] != grid.shape[0]:
        raise RuntimeError(
            "grid_sampler(): expected grid and input to have same batch size, but got input with "
            f"sizes {list(x.shape)} and grid with sizes {list(grid.shape)}"
        )
    if 0 in x.shape[2:]:
        raise RuntimeError(
            "grid_sampler(): expected input to have non-empty spatial dimensions, but input has "
            f"sizes {list(x.shape)}"
        )
    if mode == BICUBIC and dims == 3:
        raise RuntimeError("grid_sampler(): bicubic interpolation only supports 4D input")


def _register(dims: int) -> None:
    @op(f"grid_sampler_{dims}d")
    def forward(
        input: Array, grid: Array, interpolation_mode: int, padding_mode: int, align_corners: bool
    ) -> Array:
        _check(input, grid, dims, interpolation_mode)
        return _sample(input, grid, interpolation_mode, padding_mode, align_corners)

    @op(f"grid_sampler_{dims}d_backward")
    def backward(
        grad_output: Array,
        input: Array,
        grid: Array,
        interpolation_mode: int,
        padding_mode: int,
        align_corners: bool,
        output_mask: Any,
    ) -> tuple[Array | None, Array]:
        def sample(x: Array, g: Array) -> Array:
            return _sample(x, g, interpolation_mode, padding_mode, align_corners)

        for_input, for_grid = jax.vjp(sample, input, grid)[1](grad_output)
        return for_input if output_mask[0] else None, for_grid


_register(2)
_register(3)


facts("grid_sampler", autocast="widest")


def _grid_condition(input: Any, grid: Any, *_: Any, **__: Any) -> None:
    if input.dtype != grid.dtype:
        raise RuntimeError(
            f"expected scalar type {type_name(input.dtype)} but found {type_name(grid.dtype)}"
        )


facts(
    "grid_sampler_2d grid_sampler_3d",
    condition=_grid_condition,
    refuses=no_kernel("grid_sampler_cpu", BOOL, INT, COMPLEX),
)
