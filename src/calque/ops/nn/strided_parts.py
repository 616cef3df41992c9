"""Images composed of parts, as in gradients of strided sliding windows.

With a stride, neighboring elements of an image are covered by windows at different positions, but
elements a stride apart are covered in the same way. They form one part: a sum of the windows'
values, each shifted by whole windows. So no lookup of windows per element is needed. Images have
their channels last: (*lead, *size, channels).
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

Ints = tuple[int, ...]


def counts(size: Ints, padding: Ints, stride: Ints) -> Ints:
    """Returns the number of elements of a part along each axis, including leading padding."""
    return tuple(-(-(n + p) // s) for n, p, s in zip(size, padding, stride, strict=True))


def reach(kernel: Ints, stride: Ints, dilation: Ints) -> Ints:
    """Returns the largest shift of a part along each axis, in windows."""
    rows = zip(kernel, stride, dilation, strict=True)
    return tuple((k - 1) * d // s for k, s, d in rows)


def moves(kernel: Ints, stride: Ints, dilation: Ints) -> Iterator[list[tuple[int, Ints]]]:
    """Yields, for each part, the positions of the kernel that cover it, and the shift of each in
    windows. The last position, which belongs to the first window, comes first."""
    positions = list(enumerate(itertools.product(*map(range, kernel))))[::-1]
    for step in itertools.product(*map(range, stride)):
        met = []
        for number, position in positions:
            far = [i * d - r for i, d, r in zip(position, dilation, step, strict=True)]
            if not any(f % s for f, s in zip(far, stride, strict=True)):
                met.append((number, tuple(f // s for f, s in zip(far, stride, strict=True))))
        yield met


def with_windows_beside(x: Array, fill: Any, reach: Ints, counts: Ints) -> Array:
    """Pads the windows' values, (*lead, *windows, channels), with values of nonexistent windows.

    Args:
        x: the values of the windows.
        fill: the value of nonexistent windows.
        reach: see `reach`.
        counts: see `counts`.
    """
    lead = x.ndim - 1 - len(counts)
    rows = zip(reach, counts, x.shape[lead:-1], strict=True)
    ends = [(0, 0, 0)] * lead + [(e, m - n, 0) for e, m, n in rows] + [(0, 0, 0)]
    return lax.pad(x, fill, ends)


def moved(x: Array, move: Ints, reach: Ints, counts: Ints) -> Array:
    """Returns the padded values of the windows, shifted."""
    lead = x.ndim - 1 - len(counts)
    start = [*(0,) * lead, *(e - m for e, m in zip(reach, move, strict=True)), 0]
    shape = (*x.shape[:lead], *counts, x.shape[-1])
    return lax.slice(x, start, [b + n for b, n in zip(start, shape, strict=True)])


def is_given(move: Ints, counts: Ints, windows: Ints) -> Array | None:
    """Returns a mask (*counts, 1) of where a shifted part has windows; None if everywhere."""
    found = None
    for axis, (m, count, n) in enumerate(zip(move, counts, windows, strict=True)):
        if m == 0 and n >= count:
            continue
        at = lax.broadcasted_iota(np.int32, (*counts, 1), axis)
        own = (at >= m) & (at < m + n)
        found = own if found is None else found & own
    return found


def whole(parts: Sequence[Array], size: Ints, padding: Ints, stride: Ints) -> Array:
    """Returns the image composed of its parts, without padding."""
    shape, count = parts[0].shape, len(size)
    lead = len(shape) - 1 - count
    found = jnp.stack(parts).reshape(*stride, *shape)
    order = [axis for at in range(count) for axis in (count + lead + at, at)]
    found = found.transpose(*range(count, count + lead), *order, found.ndim - 1)
    extents = [m * s for m, s in zip(shape[lead:-1], stride, strict=True)]
    found = found.reshape(*shape[:lead], *extents, shape[-1])
    stop = [p + n for p, n in zip(padding, size, strict=True)]
    start, stop = (*(0,) * lead, *padding, 0), (*shape[:lead], *stop, shape[-1])
    return lax.slice(found, start, stop)
