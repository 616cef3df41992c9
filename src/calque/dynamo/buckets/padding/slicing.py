"""Rules for the primitives that slice, join and write windows."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from calque.dynamo.buckets.padding.padded import (
    SAME,
    Layout,
    Padded,
    Sizes,
    Unpaddable,
    aligned,
    filled,
    layout_of,
    spread,
)
from calque.dynamo.buckets.padding.table import expected, first_axes, rule
from calque.upstream.jax_internals import is_symbolic_dim


@rule("rev")
def _rev(sizes: Sizes, equation: Any, value: Padded) -> Padded:
    """Reverses axes; along a padded axis, the padding is moved back to the end."""
    axes, shape = equation.params["dimensions"], equation.invars[0].aval.shape
    dynamic = [axis for axis in axes if value.layout[axis]]
    for axis in dynamic:
        value = first_axes(sizes, value, shape, axis)
    array = lax.rev(value.array, axes)
    for axis in dynamic:
        array = _from(array, axis, array.shape[axis] - sizes.true(shape[axis]), array.shape[axis])
    return replace(value, array=array)


def _from(array: Any, axis: int, start: Any, count: int) -> Any:
    """Returns elements along an axis from a traced start; those beyond the end are arbitrary."""
    config = [(0, count if i == axis else 0, 0) for i in range(array.ndim)]
    longer = lax.pad(array, jnp.zeros((), array.dtype), config)
    return lax.dynamic_slice_in_dim(longer, start, count, axis)


@rule("slice")
def _slice(sizes: Sizes, equation: Any, value: Padded) -> Padded:
    params, shape = equation.params, equation.invars[0].aval.shape
    steps = params["strides"] or (1,) * len(shape)
    out = equation.outvars[0].aval.shape
    layout: list[Layout] = list(value.layout)
    array = value.array
    ranges = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
    for axis, (start, limit, step) in enumerate(ranges):
        if (start, step) == (0, 1) and limit == shape[axis]:
            continue
        if value.layout[axis] == SAME:
            if not is_symbolic_dim(out[axis]):
                array = jnp.repeat(array, out[axis], axis)
                layout[axis] = None
            continue
        value = first_axes(sizes, replace(value, array=array), shape, axis)
        held = sizes.padded(out[axis])
        reach = (held - 1) * step + 1
        array = _taken(sizes, value.array, axis, start, reach)
        array = lax.slice_in_dim(array, 0, reach, step, axis) if held else array
        layout[axis] = layout_of(out[axis])
    return expected(sizes, equation, Padded(array, tuple(layout)))


def _taken(sizes: Sizes, array: Any, axis: int, start: Any, count: int) -> Any:
    """Returns some elements from a start that may depend on sizes."""
    if is_symbolic_dim(start):
        return _from(array, axis, sizes.true(start), count)
    if start + count > array.shape[axis] or start < 0:
        raise Unpaddable("it takes more than the padded axis holds")
    return lax.slice_in_dim(array, start, start + count, 1, axis)


@rule("split")
def _split(sizes: Sizes, equation: Any, value: Padded) -> list[Padded]:
    if value.layout[equation.params["axis"]] is not None:
        raise Unpaddable("it splits a padded axis")
    found = equation.primitive.bind(value.array, **equation.params)
    return [Padded(array, value.layout) for array in found]


@rule("stack")
def _stack(sizes: Sizes, equation: Any, *values: Padded) -> Padded:
    axis = equation.params["axis"]
    found = aligned(sizes, values, [range(values[0].array.ndim)] * len(values))
    array = equation.primitive.bind(*(v.array for v in found), **equation.params)
    layout = found[0].layout
    return Padded(array, (*layout[:axis], None, *layout[axis:]))


@rule("unstack")
def _unstack(sizes: Sizes, equation: Any, value: Padded) -> list[Padded]:
    axis = equation.params["axis"]
    if value.layout[axis] is not None:
        raise Unpaddable("it splits a padded axis")
    layout = (*value.layout[:axis], *value.layout[axis + 1 :])
    found = equation.primitive.bind(value.array, **equation.params)
    return [Padded(array, layout) for array in found]


@rule("concatenate")
def _concatenate(sizes: Sizes, equation: Any, *values: Padded) -> Padded:
    axis = equation.params["dimension"]
    shapes = [v.aval.shape for v in equation.invars]
    others = [i for i in range(len(shapes[0])) if i != axis]
    found = aligned(sizes, values, [others] * len(values))
    if all(v.layout[axis] is None for v in found):
        array = lax.concatenate([v.array for v in found], axis)
        return Padded(array, found[0].layout)
    found = [first_axes(sizes, v, s, axis) for v, s in zip(found, shapes, strict=True)]
    array, start = lax.concatenate([v.array for v in found], axis), 0
    # Each overwrites the padding of the previous one.
    for value, shape in zip(found, shapes, strict=True):
        array = lax.dynamic_update_slice_in_dim(array, value.array, start, axis)
        start = start + sizes.true(shape[axis])
    layout = list(found[0].layout)
    layout[axis] = layout_of(equation.outvars[0].aval.shape[axis])
    return expected(sizes, equation, Padded(array, tuple(layout)))


@rule("pad")
def _pad(sizes: Sizes, equation: Any, value: Padded, fill: Padded) -> Padded:
    shape, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    config = equation.params["padding_config"]
    layout: list[Layout] = list(value.layout)
    touched = [axis for axis, numbers in enumerate(config) if any(n != 0 for n in numbers)]
    for axis in touched:
        if any(map(is_symbolic_dim, config[axis])):
            raise Unpaddable("the amount of padding it adds depends on a padded size")
        if layout[axis] is not None:
            value = first_axes(sizes, value, shape, axis)
            layout[axis] = layout_of(out[axis])
    value = filled(sizes, value, touched, fill.array)
    array = lax.pad(value.array, fill.array, config)
    return expected(sizes, equation, Padded(array, tuple(layout)))


# Traced positions ---------------------------------------------------------------------------------


@rule("dynamic_slice")
def _dynamic_slice(sizes: Sizes, equation: Any, value: Padded, *starts: Padded) -> Padded:
    counts = equation.params["slice_sizes"]
    return sliced(sizes, equation, value, [s.array for s in starts], counts)


def sliced(
    sizes: Sizes, equation: Any, value: Padded, starts: Sequence[Any], counts: Sequence[Any]
) -> Padded:
    """Returns some elements along each axis from traced starts, which are clamped to the bounds."""
    shape = equation.invars[0].aval.shape
    layout: list[Layout] = list(value.layout)
    array = value.array
    for axis, (start, count) in enumerate(zip(starts, counts, strict=True)):
        if count == shape[axis]:
            continue
        if layout[axis] is not None:
            value = first_axes(sizes, replace(value, array=array), shape, axis)
            array = value.array
        last = sizes.true(shape[axis]) - sizes.true(count)
        start = jnp.clip(jnp.asarray(start, np.int64), 0, last)
        array = _from(array, axis, start, sizes.padded(count))
        layout[axis] = layout_of(count)
    return Padded(array, tuple(layout))


@rule("dynamic_update_slice")
def _dynamic_update_slice(
    sizes: Sizes, equation: Any, value: Padded, update: Padded, *starts: Padded
) -> Padded:
    shapes = [v.aval.shape for v in equation.invars[:2]]
    return placed(sizes, shapes, value, update, [s.array for s in starts], lambda old, new: new)


def placed(
    sizes: Sizes,
    shapes: Sequence[Sequence[Any]],
    value: Padded,
    update: Padded,
    starts: Sequence[Any],
    combine: Callable[[Any, Any], Any],
    drop: bool = False,
) -> Padded:
    """Returns a value after combining an update with a window of it.

    Args:
        sizes: the sizes.
        shapes: the shapes of both.
        value, update: arrays of the same rank.
        starts: where the window starts.
        combine: returns the new element from the old one and the update.
        drop: whether a window that is out of bounds is ignored instead of moved.
    """
    pairs = [*zip(*shapes, strict=True)]
    full = [axis for axis, (size, new) in enumerate(pairs) if size == new]
    value, update = aligned(sizes, (value, update), (full, full))
    longer, mask = update.array, jnp.ones((), bool)
    for axis, (size, new) in enumerate(pairs):
        if axis in full:
            if value.layout[axis] == SAME:
                value, update = (spread(sizes, v, axis, layout_of(size)) for v in (value, update))
                longer = update.array
            continue
        value = first_axes(sizes, value, shapes[0], axis)
        update = first_axes(sizes, replace(update, array=longer), shapes[1], axis)
        count = sizes.true(new)
        given, last = jnp.asarray(starts[axis], np.int64), sizes.true(size) - count
        start = jnp.clip(given, 0, last)
        mask = mask & (start == given) if drop else mask
        place = jnp.arange(value.array.shape[axis])
        own = (start <= place) & (place < start + count)
        mask = mask & own.reshape([-1 if i == axis else 1 for i in range(len(pairs))])
        longer = jnp.take(update.array, place - start, axis, mode="clip")
    return replace(value, array=jnp.where(mask, combine(value.array, longer), value.array))
