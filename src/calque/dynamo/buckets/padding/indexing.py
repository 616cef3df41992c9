"""Rules for the primitives that read and write at computed indices."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import GatherScatterMode

from calque.dynamo.buckets.padding.padded import (
    SAME,
    Padded,
    Sizes,
    Unpaddable,
    aligned,
    filled,
    layout_of,
    mask_of,
    spread,
)
from calque.dynamo.buckets.padding.slicing import placed, sliced
from calque.dynamo.buckets.padding.table import first_axes, rule
from calque.upstream.jax_internals import is_symbolic_dim


@rule("gather")
def _gather(sizes: Sizes, equation: Any, value: Padded, indices: Padded) -> Padded:
    params, shape = equation.params, equation.invars[0].aval.shape
    numbers, counts = params["dimension_numbers"], params["slice_sizes"]
    if indices.array.ndim == 1 and any(
        is_symbolic_dim(counts[axis]) for axis in numbers.start_index_map
    ):
        return _gather_slice(sizes, equation, value, indices)
    pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    for pair in pairs:
        value, indices = aligned(sizes, (value, indices), [(axis,) for axis in pair])
    indexed = [axis for axis in numbers.start_index_map if value.layout[axis] is not None]
    for axis in indexed:
        value = first_axes(sizes, value, shape, axis)
        if is_symbolic_dim(counts[axis]) or params["mode"] == GatherScatterMode.CLIP:
            raise Unpaddable("it clamps the indices it reads along a padded axis")
    # Indices into the padding are out of bounds.
    if params["mode"] == GatherScatterMode.FILL_OR_DROP:
        value = filled(sizes, value, indexed, _fill(value.array.dtype, params["fill_value"]))
    held = tuple(
        value.array.shape[axis] if is_symbolic_dim(n) else n for axis, n in enumerate(counts)
    )
    array = equation.primitive.bind(value.array, indices.array, **{**params, "slice_sizes": held})
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    own = iter(
        value.layout[axis] if is_symbolic_dim(n) else None
        for axis, n in enumerate(counts)
        if axis not in gone
    )
    theirs = iter(indices.layout[:-1])
    layout = [next(own if i in numbers.offset_dims else theirs) for i in range(array.ndim)]
    return Padded(array, tuple(layout))


def _fill(dtype: Any, fill: Any) -> Any:
    if fill is not None:
        return fill
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.nan
    if dtype == np.bool_:
        return True
    unsigned = jnp.issubdtype(dtype, jnp.unsignedinteger)
    return jnp.iinfo(dtype).max if unsigned else jnp.iinfo(dtype).min


def _gather_slice(sizes: Sizes, equation: Any, value: Padded, indices: Padded) -> Padded:
    """Handles reading one window at one position, which is a slice."""
    params = equation.params
    numbers, counts = params["dimension_numbers"], params["slice_sizes"]
    if params["mode"] == GatherScatterMode.FILL_OR_DROP:
        raise Unpaddable("it reads a window along a padded axis, which may be out of bounds")
    starts: list[Any] = [0] * len(counts)
    for place, axis in enumerate(numbers.start_index_map):
        starts[axis] = indices.array[place]
    found = sliced(sizes, equation, value, starts, counts)
    gone = numbers.collapsed_slice_dims
    layout = [axis for i, axis in enumerate(found.layout) if i not in gone]
    return Padded(lax.squeeze(found.array, gone), tuple(layout))


_COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "scatter": lambda old, new: new,
    "scatter-add": lambda old, new: old + new,
}


def _is_window(numbers: Any, shape: Sequence[Any], new: Sequence[Any]) -> bool:
    """Returns True if the written window is part of a padded axis."""
    kept = [axis for axis in range(len(shape)) if axis not in numbers.inserted_window_dims]
    return any(is_symbolic_dim(n) and n != shape[a] for a, n in zip(kept, new, strict=True))


def _scatter_window(
    sizes: Sizes, equation: Any, value: Padded, indices: Padded, updates: Padded, combine: Any
) -> Padded:
    """Handles writing one window at one position."""
    shape, _, new = (v.aval.shape for v in equation.invars)
    numbers = equation.params["dimension_numbers"]
    drop = equation.params["mode"] == GatherScatterMode.FILL_OR_DROP
    starts: list[Any] = [0] * len(shape)
    for place, axis in enumerate(numbers.scatter_dims_to_operand_dims):
        starts[axis] = indices.array[place]
    gone = numbers.inserted_window_dims
    rest = iter(zip(new, updates.layout, strict=True))
    pairs = [(1, None) if axis in gone else next(rest) for axis in range(len(shape))]
    update = Padded(jnp.expand_dims(updates.array, gone), tuple(layout for _, layout in pairs))
    return placed(sizes, [shape, [n for n, _ in pairs]], value, update, starts, combine, drop)


@rule("scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter_mul", "scatter_sub",
      "scatter_min", "scatter_max", "scatter-min", "scatter-max", "scatter-sub")  # fmt: skip
def _scatter(
    sizes: Sizes, equation: Any, value: Padded, indices: Padded, updates: Padded
) -> Padded:
    """Moves padded indices out of bounds, so that they write nothing."""
    params = equation.params
    shape, places, new = (v.aval.shape for v in equation.invars)
    numbers = params["dimension_numbers"]
    combine = _COMBINED.get(equation.primitive.name)
    if indices.array.ndim == 1 and combine and _is_window(numbers, shape, new):
        return _scatter_window(sizes, equation, value, indices, updates, combine)
    if params["mode"] == GatherScatterMode.CLIP or not numbers.scatter_dims_to_operand_dims:
        raise Unpaddable("it clamps the indices it writes along a padded axis")
    for axis in numbers.scatter_dims_to_operand_dims:
        if value.layout[axis] is not None:
            value = first_axes(sizes, value, shape, axis)
    for axis, layout in enumerate(value.layout):
        value = spread(sizes, value, axis, layout_of(shape[axis])) if layout == SAME else value
    window = numbers.update_window_dims
    rows = [axis for axis in range(len(new)) if axis not in window]
    batch = range(len(places) - 1)
    indices, updates = aligned(sizes, (indices, updates), (batch, rows))
    for axis, row in zip(batch, rows, strict=True):
        layout = layout_of(places[axis])
        indices = spread(sizes, indices, axis, layout)
        updates = spread(sizes, updates, row, layout)
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    kept = [axis for axis in range(len(shape)) if axis not in gone]
    for axis, row in zip(kept, window, strict=True):
        if value.layout[axis] is None and updates.layout[row] is None:
            continue
        if shape[axis] != new[row]:
            raise Unpaddable("it writes a padded window")
        value, updates = aligned(sizes, (value, updates), ((axis,), (row,)))
    pairs = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    for pair in pairs:
        value, indices = aligned(sizes, (value, indices), [(axis,) for axis in pair])
    mask = mask_of(sizes, indices, batch)
    if mask is not None:
        signed = jnp.issubdtype(indices.array.dtype, jnp.signedinteger)
        outside = -1 if signed else jnp.iinfo(indices.array.dtype).max
        masked = jnp.where(mask, indices.array, jnp.asarray(outside, indices.array.dtype))
        indices = replace(indices, array=masked)
    params = {
        **params,
        "mode": GatherScatterMode.FILL_OR_DROP,
        "indices_are_sorted": params["indices_are_sorted"] and mask is None,
        "unique_indices": params["unique_indices"] and mask is None,
    }
    array = equation.primitive.bind(value.array, indices.array, updates.array, **params)
    return replace(value, array=array)
