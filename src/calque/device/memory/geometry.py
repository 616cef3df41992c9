"""Sizes, strides and offsets, and the order of elements in memory.

A storage has no flat memory: it is a JAX array with the strides that PyTorch sees (`Layout`).
`view_access` reads and writes its views.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

Ints = tuple[int, ...]


class View(NamedTuple):
    """A view as PyTorch describes it, in units of elements."""

    size: Ints
    stride: Ints
    offset: int


class Layout(NamedTuple):
    """The shape of a storage's array, and the strides that it represents, in any order of axes.

    Strides may have holes (see `is_nested`): the array of a window of some memory, whose other
    elements are not needed, has the strides of the window.
    """

    shape: Ints
    stride: Ints

    @property
    def length(self) -> int:
        """The number of elements in the memory, including gaps."""
        return extent(self.shape, self.stride)


def contiguous_strides(shape: Sequence[int]) -> Ints:
    """Returns the row-major strides of a shape, as in PyTorch (an empty axis counts as one)."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@lru_cache(maxsize=4096)
def row_major(shape: Ints) -> Layout:
    """Returns the row-major layout of a shape."""
    return Layout(shape, contiguous_strides(shape))


def _long_axes(shape: Ints, stride: Ints) -> list[tuple[int, int, int]]:
    """Returns (stride, size, axis) of the axes with more than one element, sorted by stride."""
    rows = zip(stride, shape, range(len(shape)), strict=True)
    return sorted((s, n, axis) for s, n, axis in rows if n > 1)


def is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Returns True if the strides are a permutation of row-major ones: no holes and no overlap."""
    if 0 in shape:
        return True
    expected = 1
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size == 1:
            continue
        if step != expected:
            return False
        expected *= size
    return True


@lru_cache(maxsize=8192)
def permutation(shape: Ints, stride: Ints) -> Ints | None:
    """Returns the axes in memory order, outermost first.

    Returns None if they are in this order already, or if strides have holes or overlap.
    """
    if 0 in shape or not is_dense(shape, stride):
        return None
    order = tuple(memory_order(Layout(shape, stride)))
    long = [axis for axis in order if shape[axis] > 1]
    return None if long == sorted(long) else order


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Returns the number of elements of memory that these sizes and strides need."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def is_nested(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Returns True if each stride exceeds the extent of the smaller ones: no overlap, but possibly
    holes.
    """
    reached = 0
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size > 1 and step <= reached:
            return False
        reached += (size - 1) * step
    return True


def overlaps(view: View) -> bool:
    """Returns True if the view repeats its elements along an axis."""
    return bool(repeated(view)) and 0 not in view.size


def repeated(view: View) -> list[int]:
    """Returns the axes along which a view repeats its elements."""
    pairs = enumerate(zip(view.size, view.stride, strict=True))
    return [axis for axis, (n, step) in pairs if n > 1 and step == 0]


@lru_cache(maxsize=1024)
def meets_itself(view: View) -> bool:
    """Returns True if two elements of the view overlap in memory.

    >>> meets_itself(View((2, 3), (1, 1), 0)), meets_itself(View((2, 2), (3, 2), 0))
    (True, False)
    """
    if 0 in view.size or is_nested(view.size, view.stride):
        return False
    steps = [np.arange(n) * step for n, step in zip(view.size, view.stride, strict=True)]
    places = sum(np.ix_(*steps))
    return np.unique(places).size < math.prod(view.size)


def memory(array: Array, layout: Layout) -> Array:
    """Returns the array's elements in memory order, as one axis, with zeros in gaps."""
    flat = jnp.transpose(array, memory_order(layout))
    if is_dense(*layout):
        return flat.reshape(-1)
    nest = _nest(layout)
    flat = flat.reshape(*(size for size, _, _ in nest), 1)
    for size, step, block in reversed(nest):
        padded = jnp.pad(flat, [(0, 0)] * (flat.ndim - 1) + [(0, step - block)])
        flat = padded.reshape(*flat.shape[:-2], size * step)[..., : (size - 1) * step + block]
    return flat


def from_memory(flat: Array, layout: Layout) -> Array:
    """Returns the inverse of `memory`."""
    order = memory_order(layout)
    if not is_dense(*layout):
        for size, step, block in _nest(layout):
            padded = jnp.pad(flat, [(0, 0)] * (flat.ndim - 1) + [(0, step - block)])
            flat = padded.reshape(*flat.shape[:-1], size, step)[..., :block]
    ordered = flat.reshape([layout.shape[axis] for axis in order])
    return jnp.transpose(ordered, np.argsort(np.asarray(order, dtype=int)))


def _nest(layout: Layout) -> list[tuple[int, int, int]]:
    """Returns (size, stride, length of a step in memory) of the long axes, outermost first."""
    nest = []
    block = 1
    for step, size, _ in _long_axes(*layout):
        nest.append((size, step, block))
        block += (size - 1) * step
    return nest[::-1]


def memory_order(layout: Layout) -> list[int]:
    """Returns the axes of a layout from the outermost in memory to the innermost."""
    axes = range(len(layout.shape))
    return sorted(axes, key=lambda a: (-layout.stride[a], layout.shape[a] > 1))
