"""Resampling of images whose sizes are arguments of an exported program.

The positions are computed as in `resize`, with the same formulas, when the program runs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.table.linear_resample import widened

_A = -0.75  # the parameter of PyTorch's cubic convolution


def _nearest(at: Array, size: Any) -> list[tuple[Array, Any]]:
    return [(jnp.floor(at), 1)]


def _linear(at: Array, size: Any) -> list[tuple[Array, Any]]:
    at = jnp.maximum(at, 0)
    low = jnp.minimum(jnp.floor(at), jnp.asarray(size - 1, at.dtype))
    part = jnp.clip(at - low, 0, 1)
    return [(low, 1 - part), (low + 1, part)]


def _cubic(at: Array, size: Any) -> list[tuple[Array, Any]]:
    def near(x: Array) -> Array:
        return ((_A + 2) * x - (_A + 3)) * x * x + 1

    def far(x: Array) -> Array:
        return ((_A * x - 5 * _A) * x + 8 * _A) * x - 4 * _A

    low = jnp.floor(at)
    part = at - low
    weights = (far(part + 1), near(part), near(1 - part), far(2 - part))
    return [(low + k - 1, weight) for k, weight in enumerate(weights)]


_KINDS: dict[str, Callable[[Array, Any], list[tuple[Array, Any]]]] = {
    "nearest": _nearest,
    "nearest-exact": _nearest,
    "linear": _linear,
    "cubic": _cubic,
}


def resample(
    x: Array, kind: str, output_size: Sequence[Any], align: bool, scales: Sequence[float | None]
) -> Array:
    """Returns an image resampled along its last axes.

    Args:
        x: (batch, channels, *sizes).
        kind: a key of `_KINDS`.
        output_size: the sizes of the result.
        align: PyTorch's `align_corners`.
        scales: the factor of each axis, or None if the sizes determine it.
    """
    real = np.float64 if x.dtype == np.float64 and "nearest" not in kind else np.float32
    image = widened(x)
    for axis, (out, scale) in enumerate(zip(output_size, scales, strict=True), 2):
        size = x.shape[axis]
        at = _positions(kind, size, out, align, scale, real)
        image = sum(_taken(image, axis, *tap) for tap in _KINDS[kind](at, size))
    return image.astype(x.dtype)


def _positions(
    kind: str, size: Any, out: Any, align: bool, scale: float | None, real: Any
) -> Array:
    """Returns the position of each output in the input."""
    if align:
        step = jnp.asarray(size - 1, real) / jnp.maximum(jnp.asarray(out - 1, real), 1)
    elif scale is not None and scale > 0:
        step = real(1.0 / scale)
    else:
        step = jnp.asarray(size, real) / jnp.asarray(out, real)
    at = jnp.arange(out).astype(real)
    if kind == "nearest" or align:
        return at * step
    return (at + real(0.5)) * step - (0 if kind == "nearest-exact" else real(0.5))


def _taken(x: Array, axis: int, sources: Array, weights: Any) -> Array:
    """Returns the weighted sum of elements along an axis, whose indices are clamped to it."""
    limit = jnp.asarray(x.shape[axis] - 1, np.int32)
    sources = jnp.clip(sources.astype(np.int32), 0, limit)
    taken = jnp.take(x, sources, axis=axis, mode="clip")
    if isinstance(weights, int):
        return taken
    return taken * weights.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - axis - 1))
