"""Reads and writes a view of an array, given the view's size, stride and offset.

A view is expressed as slices of the array's own axes, or of the axes of a reshape, or else as a
gather. Offsets are traced numbers, so that the windows of a sliding slice share one executable.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.device.memory.geometry import (
    Ints,
    Layout,
    View,
    contiguous_strides,
    from_memory,
    is_nested,
    memory,
    overlaps,
    repeated,
)
from calque.device.memory.overlapping_writes import is_changed, last_change
from calque.device.runtime.compile_cache import kept
from calque.device.runtime.staged_calls import call

Slices = tuple[Ints, Ints, Ints, Ints]
"""Extents, steps, order, and a start for each axis of the shape (see `AccessPlan`)."""

READ_VIEW = "calque.read_view"  # not a valid name for a user's function
"""The name of the function that reads a view of an array, in traced programs."""


@dataclass(frozen=True)
class AccessPlan:
    """How to access a view, except for its start.

    Attributes:
        layout: the layout of the storage's array.
        axes_shape: the shape to slice: the array's own, or that of a reshape of its memory.
        of_memory: whether `axes_shape` is a reshape of the (padded) memory.
        extents: the extent of the slice along each axis of `axes_shape`; None for a gather.
        steps: the step along each axis.
        order: for each dimension of the view with several distinct elements, the axis that it comes
            from.
        view: the view, with offset 0.
        free: the axes along which the view may start at a position other than 0. A gather has one
            start, in memory.
    """

    layout: Layout
    axes_shape: Ints
    of_memory: bool
    extents: Ints | None
    steps: Ints
    order: Ints
    view: View
    free: Ints

    @cached_property
    def _hash(self) -> int:
        return hash((self.layout, self.extents, self.steps, self.order, self.view, self.free))

    def __hash__(self) -> int:
        return self._hash


Planned = tuple["AccessPlan", Sequence[Any]]
"""A plan, and the start along each of its free axes."""
Planner = Callable[[Layout, View], Planned]


def read(array: Array, layout: Layout, view: View, planner: Planner | None = None) -> Array:
    """Returns the elements of a view as an array of the view's size."""
    if 0 in view.size:
        return jnp.zeros(view.size, array.dtype)
    plan, starts = (planner or plan_of)(layout, view)
    return call(_reader(plan), (array, *starts))


def write(
    array: Array, layout: Layout, view: View, value: Array, planner: Planner | None = None
) -> Array:
    """Returns the array with the elements of a view replaced with `value` (of the view's size)."""
    if 0 in view.size:
        return array
    plan, starts = (planner or plan_of)(layout, view)
    return call(_writer(plan), (array, value, *starts))


@lru_cache(maxsize=8192)
def plan_of(layout: Layout, view: View) -> tuple[AccessPlan, Ints]:
    """Returns the plan of a non-empty view, and the start along each free axis."""
    last = view.offset + sum((n - 1) * s for n, s in zip(view.size, view.stride, strict=True))
    if last >= layout.length:
        raise RuntimeError(
            f"a tensor of sizes {list(view.size)}, strides {list(view.stride)} and storage offset "
            f"{view.offset} is out of bounds for a storage of {layout.length} elements (it was "
            "resized)"
        )
    fixed = View(view.size, view.stride, 0)
    own = match_axes(layout.shape, layout.stride, view)
    if own is not None:
        return _sliced(layout, layout.shape, False, own, fixed)
    shape = _factor_memory(layout.length, view)
    match = None if shape is None else match_axes(shape, contiguous_strides(shape), view)
    if shape is not None and match is not None:
        shape = _in_blocks(shape, match)
        match = match_axes(shape, contiguous_strides(shape), view)
        assert match is not None
        return _sliced(layout, shape, True, match, fixed)
    return gathered(layout, view), (view.offset,)


def gathered(layout: Layout, view: View) -> AccessPlan:
    """Returns the plan that gathers a view's elements from memory."""
    fixed = View(view.size, view.stride, 0)
    return AccessPlan(layout, (layout.length,), True, None, (), (), fixed, (0,))


def _sliced(
    layout: Layout, shape: Ints, of_memory: bool, match: Slices, view: View
) -> tuple[AccessPlan, Ints]:
    """Like `plan_of`, for a view that is a slice of a shape (see `match_axes`)."""
    extents, steps, order, starts = match
    free = tuple(axis for axis, size in enumerate(shape) if extents[axis] < size)
    plan = AccessPlan(layout, shape, of_memory, extents, steps, order, view, free)
    return plan, tuple(starts[axis] for axis in free)


def _window(plan: AccessPlan, starts: Sequence[Any]) -> list[Any]:
    """Returns the start of a plan's slice along every axis."""
    at = dict(zip(plan.free, starts, strict=True))
    return [at.get(axis, 0) for axis in range(len(plan.axes_shape))]


def _core(view: View) -> list[tuple[int, int]]:
    """Returns (size, stride) of the view's dimensions that have several distinct elements."""
    pairs = zip(view.size, view.stride, strict=True)
    return [(n, s) for n, s in pairs if n > 1 and s != 0]


def match_axes(shape: Ints, stride: Ints, view: View) -> Slices | None:
    """Returns the extents, steps, axis order and starts of the view as slices of distinct axes, if
    possible.
    """
    by_stride = sorted((a for a, n in enumerate(shape) if n > 1), key=lambda a: -stride[a])
    starts = [0] * len(shape)
    rest = view.offset
    for axis in by_stride:
        starts[axis], rest = divmod(rest, stride[axis])
        if starts[axis] >= shape[axis]:
            return None
    if rest:
        return None
    extents, steps, order = [1] * len(shape), [1] * len(shape), []
    for size, step in _core(view):
        for axis in by_stride:
            if axis in order or step % stride[axis]:
                continue
            extent = (size - 1) * (step // stride[axis]) + 1
            if starts[axis] + extent <= shape[axis]:
                extents[axis], steps[axis] = extent, step // stride[axis]
                order.append(axis)
                break
        else:
            return None
    return tuple(extents), tuple(steps), tuple(order), tuple(starts)


def _factor_memory(length: int, view: View) -> Ints | None:
    """Returns a shape for the padded memory in which each stride of the view is the stride of an
    axis.
    """
    strides = sorted({s for _, s in _core(view)}, reverse=True)
    if not strides:
        return (length,)
    inner = [strides[-1]] if strides[-1] > 1 else []
    middle = []
    for outer, nested in pairwise(strides):
        if outer % nested:
            return None
        middle.append(outer // nested)
    return (-(-length // strides[0]), *middle, *inner)


def _in_blocks(shape: Ints, match: Slices) -> Ints:
    """Returns the shape in which an axis is split in two if the view takes one of its equal blocks.

    Views of different blocks then share the reshape, so sharded memory is gathered at most once:
    for example, queries, keys and values are blocks of one product.
    """
    extents, steps, _, starts = match
    found: list[int] = []
    for size, reach, step, start in zip(shape, extents, steps, starts, strict=True):
        is_block = step == 1 < reach < size and size % reach == start % reach == 0
        found += [size // reach, reach] if is_block else [size]
    return tuple(found)


def _axes(plan: AccessPlan, array: Array) -> Array:
    if not plan.of_memory:
        return array
    padding = math.prod(plan.axes_shape) - plan.layout.length
    flat = memory(array, plan.layout)
    return (jnp.pad(flat, (0, padding)) if padding else flat).reshape(plan.axes_shape)


def _indices(view: View, offset: Array) -> Array:
    index = jnp.asarray(offset, jnp.int64)
    for axis, (size, step) in enumerate(zip(view.size, view.stride, strict=True)):
        shape = [size if a == axis else 1 for a in range(len(view.size))]
        index = index + (jnp.arange(size, dtype=jnp.int64) * step).reshape(shape)
    return index


def _core_shape(view: View) -> Ints:
    """Returns the view's size, with 1 for each dimension that only repeats elements."""
    return tuple(n if n > 1 and s != 0 else 1 for n, s in zip(view.size, view.stride, strict=True))


def read_plan(plan: AccessPlan, array: Array, starts: Sequence[Any]) -> Array:
    """Returns the elements of a plan's view, given the starts along the free axes."""
    axes = _axes(plan, array)
    if plan.extents is None:
        return axes[_indices(plan.view, jnp.asarray(starts[0]))]
    block = _slice(plan, axes, starts) if plan.free else axes
    block = block[tuple(slice(None, None, step) for step in plan.steps)]
    others = [a for a in range(len(plan.axes_shape)) if a not in plan.order]
    block = jnp.transpose(block, [*plan.order, *others]).reshape(_core_shape(plan.view))
    return jnp.broadcast_to(block, plan.view.size)


def _slice(plan: AccessPlan, axes: Array, starts: Sequence[Any]) -> Array:
    assert plan.extents is not None
    where = _window(plan, starts)
    return lax.dynamic_slice(axes, where, plan.extents, allow_negative_indices=False)


@kept
def _reader(plan: AccessPlan) -> Callable[..., Array]:
    def read_view(array: Array, *starts: int) -> Array:
        return read_plan(plan, array, starts)

    read_view.__name__ = read_view.__qualname__ = READ_VIEW
    return jax.jit(read_view)


@kept
def _writer(plan: AccessPlan) -> Callable[..., Array]:
    def write_view(array: Array, value: Array, *starts: int) -> Array:
        return write_plan(plan, array, value, starts)

    return jax.jit(write_view)


def write_plan(plan: AccessPlan, array: Array, value: Array, starts: Sequence[Any]) -> Array:
    """Returns the array with a value written to a plan's view, given the starts.

    If several elements of the view share memory, the changed ones are written, because an operator
    may change only some of them.
    """
    axes = _axes(plan, array)
    if plan.extents is None:
        indices = _indices(plan.view, jnp.asarray(starts[0]))
        if not is_nested(plan.view.size, plan.view.stride):
            changed = is_changed(axes[indices], value)
            indices = jnp.where(changed, indices, plan.layout.length)  # unchanged ones are dropped
        axes = axes.at[indices].set(value, mode="drop")
    else:
        if overlaps(plan.view):
            value = last_change(read_plan(plan, array, starts), value, repeated(plan.view))
        axes = _write_slices(plan, axes, value, starts)
    if not plan.of_memory:
        return axes
    flat = axes.reshape(-1)[: plan.layout.length]
    return from_memory(flat, plan.layout)


def _write_slices(plan: AccessPlan, axes: Array, value: Array, starts: Sequence[Any]) -> Array:
    assert plan.extents is not None
    first = tuple(slice(0, n) for n in _core_shape(plan.view))
    others = [a for a in range(len(plan.axes_shape)) if a not in plan.order]
    order = [*plan.order, *others]
    counts = [-(-e // s) for e, s in zip(plan.extents, plan.steps, strict=True)]
    block = value[first].reshape([counts[a] for a in order])
    block = jnp.transpose(block, np.argsort(np.asarray(order, dtype=int)))
    if any(step > 1 for step in plan.steps):
        window = _slice(plan, axes, starts)
        block = window.at[tuple(slice(None, None, step) for step in plan.steps)].set(block)
    if not plan.free:
        return block
    where = _window(plan, starts)
    return lax.dynamic_update_slice(axes, block, where, allow_negative_indices=False)
