"""The maxima of sliding windows as the maximum of shifted images, for CPUs.

XLA visits the elements of each window one by one, and takes six times as long as the maximum of
nine shifted images; its gradient (select-and-scatter) is even slower.
"""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.ops.nn import strided_parts
from calque.ops.nn.sliding_windows import Windows
from calque.ops.table.linear_resample import widened

_MOST = 49
_NONE = 255  # no position


def applies(x: Array, w: Windows) -> bool:
    """Returns True if this implementation should be used for the windows of an image."""
    if jax.default_backend() != "cpu" or math.prod(w.kernel) > _MOST:
        return False
    return w.is_known and 0 not in w.size


def prefer(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    """Returns the larger of two (value, position) pairs: the first of equal values, the last of
    NaNs."""
    (x, i), (y, j) = a, b
    x_nan, y_nan = x != x, y != y
    first = jnp.where(x_nan | y_nan, x_nan & (~y_nan | (i > j)), (x > y) | ((x == y) & (i < j)))
    return jnp.where(first, x, y), jnp.where(first, i, j)


def maximum(x: Array, w: Windows, lowest: Any) -> Array:
    """Returns the maximum of each window; outside the image, values are `lowest`."""
    first, *others = _shifted(x, w, lowest)
    for part in others:
        first = lax.max(first, part)
    return first


def positions_of(x: Array, w: Windows, lowest: Any) -> Array:
    """Returns the flat position in the image of each window's maximum, as int64."""
    chosen = _chosen(_shifted(lax.stop_gradient(x), w, lowest), _first_inside(w), lowest)
    places = [np.unravel_index(t, w.kernel) for t in range(math.prod(w.kernel))]
    table = np.array(places, np.int64).reshape(len(places), len(w.size))
    flat: Any = np.int64(0)
    for axis, size in enumerate(w.size):
        start = np.arange(w.out[axis], dtype=np.int64) * w.stride[axis] - w.padding[axis]
        own = start.reshape([-1 if a == axis else 1 for a in range(len(w.size))])
        within = jnp.asarray(table[:, axis] * w.dilation[axis])[chosen]
        flat = flat * size + within + own
    return flat


def has_gradient(w: Windows) -> bool:
    """Returns True if `gradient` supports these windows."""
    return math.prod(w.stride) <= _MOST


def gradient(grad: Array, x: Array, w: Windows, lowest: Any) -> Array:
    """Returns the gradient of the image: each window's gradient goes to the position of its
    maximum.

    The channels are last, so that the innermost loops run over them.

    Args:
        grad: the gradient of the maxima.
        x: the image.
        w: the windows.
        lowest: the value outside the image.
    """
    channels = x.ndim - len(w.size) - 1
    last = jnp.moveaxis(lax.stop_gradient(x), channels, -1)
    parts = _shifted(last, w, lowest, channels)
    chosen = _written_out(_chosen(parts, _first_inside(w)[..., None], lowest))
    wide = jnp.moveaxis(widened(grad), channels, -1)
    return jnp.moveaxis(_spread(wide, chosen, w), -1, channels).astype(grad.dtype)


def _spread(grad: Array, chosen: Array, w: Windows) -> Array:
    """Adds the windows' gradients at the chosen positions: (*lead, *size, channels)."""
    counts = strided_parts.counts(w.size, w.padding, w.stride)
    reach = strided_parts.reach(w.kernel, w.stride, w.dilation)
    shape = (*grad.shape[: grad.ndim - 1 - len(w.size)], *counts, grad.shape[-1])
    grad = strided_parts.with_windows_beside(grad, np.zeros((), grad.dtype), reach, counts)
    chosen = strided_parts.with_windows_beside(chosen, np.uint8(_NONE), reach, counts)
    parts = []
    for met in strided_parts.moves(w.kernel, w.stride, w.dilation):
        total = jnp.zeros(shape, grad.dtype)
        for t, move in met:
            here = strided_parts.moved(chosen, move, reach, counts) == t
            total = total + jnp.where(here, strided_parts.moved(grad, move, reach, counts), 0)
        parts.append(total)
    return strided_parts.whole(parts, w.size, w.padding, w.stride)


def _shifted(x: Array, w: Windows, fill: Any, lead: int | None = None) -> list[Array]:
    """Returns, for each position in the window, the elements that all windows have at that
    position.

    Args:
        x: the image.
        w: the windows.
        fill: the value outside the image.
        lead: the number of axes before those of the windows; None if the windows' axes come last.
    """
    lead = x.ndim - len(w.size) if lead is None else lead
    behind = x.ndim - lead - len(w.size)
    others = [(0, 0, 0)]
    ends = [(before, after, 0) for before, after in w.pads]
    x = lax.pad(x, fill, others * lead + ends + others * behind)
    found = []
    for position in itertools.product(*map(range, w.kernel)):
        start = [i * d for i, d in zip(position, w.dilation, strict=True)]
        rows = zip(start, w.out, w.stride, strict=True)
        stop = [b + (n - 1) * s + 1 for b, n, s in rows]
        first = (*(0,) * lead, *start, *(0,) * behind)
        limits = (*x.shape[:lead], *stop, *x.shape[x.ndim - behind :])
        found.append(lax.slice(x, first, limits, (*(1,) * lead, *w.stride, *(1,) * behind)))
    return found


def _first_inside(w: Windows) -> np.ndarray:
    """Returns the first position of each window that is in the image."""
    found = np.zeros((1,) * len(w.out), np.uint8)
    rows = zip(w.out, w.kernel, w.stride, w.padding, w.dilation, strict=True)
    for axis, (n, k, s, p, d) in enumerate(rows):
        start = np.arange(n) * s - p
        own = np.where(start < 0, -(start // d), 0).astype(np.uint8)
        own = own.reshape([-1 if a == axis else 1 for a in range(len(w.out))])
        found = found * np.uint8(k) + own
    return found


def _chosen(parts: list[Array], first: np.ndarray, lowest: Any) -> Array:
    """Returns the position of the maximum in each window: the first of equal values, the last of
    NaNs.

    Args:
        parts: the elements of the windows at each position.
        first: the position to choose if all values are lowest.
        lowest: the lowest value.
    """
    shape = parts[0].shape
    best: Any = jnp.full(shape, lowest, parts[0].dtype)
    chosen: Any = jnp.broadcast_to(first, shape)
    for t, part in enumerate(parts):
        better = (part > best) | (part != part)
        best = jnp.where(better, part, best)
        chosen = jnp.where(better, np.uint8(t), chosen)
    return chosen


def _written_out(x: Array) -> Array:
    """Returns the array, forcing XLA to materialize it instead of fusing it into its consumers.

    XLA for CPUs ignores optimization barriers, but it does not fuse into a loop over rows.
    """
    known = [isinstance(n, int) for n in x.shape]
    axis = next((a for a, n in enumerate(x.shape) if n != 1), None)
    if axis is None or not all(known):  # sizes may be symbolic in exports
        return x
    if 0 in x.shape:
        return x
    return lax.map(lambda row: row, x.reshape(x.shape[axis], -1)).reshape(x.shape)
