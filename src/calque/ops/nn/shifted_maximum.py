"""The maxima of sliding windows as the maximum of shifted images, for CPUs.

XLA goes through every window one element after another, and in the gradient (select-and-scatter)
even more slowly: six times as long as the maximum of nine shifted images takes.
"""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.ops.nn.sliding_windows import Windows
from calque.ops.table.linear_resample import widened

_MOST = 49


def applies(x: Array, w: Windows) -> bool:
    """Whether windows of an image are taken this way."""
    if jax.default_backend() != "cpu" or math.prod(w.kernel) > _MOST:
        return False
    sizes = x.shape[x.ndim - len(w.size) :]  # of an exported program, they need not be known
    return all(isinstance(n, int) for n in (*sizes, *w.out)) and 0 not in w.size


def prefer(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    """The larger of two (value, position): the first of equal ones, the last of NaNs."""
    (x, i), (y, j) = a, b
    x_nan, y_nan = x != x, y != y
    first = jnp.where(x_nan | y_nan, x_nan & (~y_nan | (i > j)), (x > y) | ((x == y) & (i < j)))
    return jnp.where(first, x, y), jnp.where(first, i, j)


def maximum(x: Array, w: Windows, lowest: Any) -> Array:
    """The maximum of each window; `lowest` stands outside of the image."""
    first, *others = _shifted(x, w, lowest)
    for part in others:
        first = lax.max(first, part)
    return first


def positions_of(x: Array, w: Windows, lowest: Any) -> Array:
    """The flat position in the image of each window's maximum, as int64."""
    chosen = _chosen(x, w, lowest)
    places = [np.unravel_index(t, w.kernel) for t in range(math.prod(w.kernel))]
    table = np.array(places, np.int64).reshape(len(places), len(w.size))
    flat: Any = np.int64(0)
    for axis, size in enumerate(w.size):
        start = np.arange(w.out[axis], dtype=np.int64) * w.stride[axis] - w.padding[axis]
        own = start.reshape([-1 if a == axis else 1 for a in range(len(w.size))])
        within = jnp.asarray(table[:, axis] * w.dilation[axis])[chosen]
        flat = flat * size + within + own
    return flat


def gradient(grad: Array, x: Array, w: Windows, lowest: Any) -> Array:
    """The gradient of the image: each window's goes to where its maximum stands.

    Args:
        grad: the gradient of the maxima.
        x: the image.
        w: the windows.
        lowest: what stands outside of the image.
    """
    chosen = lax.optimization_barrier(_chosen(x, w, lowest))
    wide = widened(grad)
    parts = [jnp.where(chosen == t, wide, 0) for t in range(math.prod(w.kernel))]
    like = jax.ShapeDtypeStruct(x.shape, wide.dtype)
    zero = np.zeros((), wide.dtype)
    (found,) = jax.linear_transpose(lambda image: _shifted(image, w, zero), like)(parts)
    return found.astype(grad.dtype)


def _shifted(x: Array, w: Windows, fill: Any) -> list[Array]:
    """For each position of the window, what of the image the windows have there."""
    lead = x.ndim - len(w.size)
    x = lax.pad(x, fill, [(0, 0, 0)] * lead + [(before, after, 0) for before, after in w.pads])
    found = []
    for position in itertools.product(*map(range, w.kernel)):
        start = [i * d for i, d in zip(position, w.dilation, strict=True)]
        rows = zip(start, w.out, w.stride, strict=True)
        stop = [b + (n - 1) * s + 1 for b, n, s in rows]
        first = (*(0,) * lead, *start)
        found.append(lax.slice(x, first, (*x.shape[:lead], *stop), (*(1,) * lead, *w.stride)))
    return found


def _chosen(x: Array, w: Windows, lowest: Any) -> Array:
    """Which position of each window has its maximum; one in the image if all are lowest."""
    parts = _shifted(lax.stop_gradient(x), w, lowest)
    inside = _shifted(jnp.ones(w.size, np.bool_), w, np.False_)
    best = parts[0], jnp.where(inside[0], np.int32(0), np.int32(len(parts)))
    best = best[0], jnp.broadcast_to(best[1], parts[0].shape)
    for t, part in enumerate(parts[1:], 1):
        at = jnp.where(inside[t], np.int32(t), np.int32(len(parts)))
        best = prefer(best, (part, jnp.broadcast_to(at, part.shape)))
    return best[1]
