"""Results whose number of elements depends on values: masks, unique elements, counts.

These rules run in NumPy on concrete arrays, because each new number of elements would need a new
executable.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.table.facts import no_kernel
from calque.ops.table.helpers import wrap_dim
from calque.ops.table.promotion import BOOL, COMPLEX, FLOAT, is_integral
from calque.ops.table.registry import op


@op("masked_select", data_dependent=True, writes=("exact_dtype", "apart"))
def masked_select(self: Array, mask: Array) -> Array:
    if mask.dtype != np.bool_:
        raise RuntimeError(f"masked_select: expected BoolTensor for mask, but got {mask.dtype}")
    values, chosen = np.broadcast_arrays(np.asarray(self), np.asarray(mask))
    return jnp.asarray(values[chosen])


@op("nonzero", data_dependent=True, layout="positions", writes=("exact_dtype",))
def nonzero(self: Array) -> Array:
    if self.ndim == 0:
        return jnp.zeros((int(np.asarray(self) != 0), 0), np.int64)
    return jnp.asarray(np.argwhere(np.asarray(self)))


@op("nonzero_static")
def nonzero_static(self: Array, size: int, fill_value: int = -1) -> Array:
    if self.ndim == 0:
        return jnp.zeros((size, 0), np.int64)
    if self.size == 0:
        return jnp.full((size, self.ndim), fill_value, np.int64)
    found = jnp.nonzero(self, size=size, fill_value=fill_value)
    return jnp.stack(found, axis=1).astype(np.int64)


def _unique(values: np.ndarray, axis: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the sorted unique elements (or slices along an axis), the inverse, and the counts."""
    if axis is not None and values.size == 0:
        return values, np.zeros(values.shape[axis], int), np.zeros(values.shape[axis], int)
    # NumPy sorts NaN last, but only in its own dtypes.
    kept = values.astype(np.float32) if values.dtype == jnp.bfloat16 else values
    found, inverse, counts = np.unique(
        kept, return_inverse=True, return_counts=True, axis=axis, equal_nan=False
    )
    inverse = inverse.reshape(values.shape if axis is None else -1)
    return found.astype(values.dtype), inverse, counts


def _results(found: Any, inverse: Any, counts: Any, with_inverse: bool, with_counts: bool) -> Any:
    empty = np.zeros(0, np.int64)
    return (
        jnp.asarray(found),
        jnp.asarray((inverse if with_inverse else empty).astype(np.int64)),
        jnp.asarray((counts if with_counts else empty).astype(np.int64)),
    )


@op("_unique2", data_dependent=True)
def unique2(
    self: Array, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    return _results(*_unique(np.asarray(self), None), return_inverse, return_counts)


@op("_unique", data_dependent=True)
def unique(self: Array, sorted: bool = True, return_inverse: bool = False) -> Any:
    return _results(*_unique(np.asarray(self), None), return_inverse, False)[:2]


def _rows_condition(self: Any, dim: int, *_: Any, **__: Any) -> None:
    empty = self.shape.count(0)
    if empty and self.shape[wrap_dim(dim, self.ndim)]:
        raise RuntimeError(
            "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied"
        )
    if empty > 1:
        raise RuntimeError(
            "Number of zero sized dimensions is more than one, so unique cannot be applied"
        )


@op("unique_dim", data_dependent=True, layout="slices", condition=_rows_condition)
def unique_dim(
    self: Array,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Any:
    axis = wrap_dim(dim, self.ndim)
    return _results(*_unique(np.asarray(self), axis), return_inverse, return_counts)


@op("unique_consecutive", data_dependent=True, layout="slices")
def unique_consecutive(
    self: Array, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    if dim is not None:
        return unique_dim_consecutive(self, dim, return_inverse, return_counts)
    flat = np.asarray(self).reshape(-1)
    found, inverse, counts = _runs(flat)
    return _results(found, inverse.reshape(self.shape), counts, return_inverse, return_counts)


@op("unique_dim_consecutive", data_dependent=True, layout="slices", condition=_rows_condition)
def unique_dim_consecutive(
    self: Array, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    axis = wrap_dim(dim, self.ndim)
    rows = np.moveaxis(np.asarray(self), axis, 0) if self.ndim else np.asarray(self).reshape(1)
    found, inverse, counts = _runs(rows)
    found = np.moveaxis(found, 0, axis)
    return _results(found, inverse, counts, return_inverse, return_counts)


def _runs(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the first row of each run of equal rows, each row's run, and the runs' lengths."""
    count = rows.shape[0]
    differs = (rows[1:] != rows[:-1]).any(axis=tuple(range(1, rows.ndim)))
    first = np.concatenate([np.ones(min(count, 1), bool), differs])
    starts = np.flatnonzero(first)
    return rows[first], np.cumsum(first) - 1, np.diff(np.append(starts, count))


@op("bincount", data_dependent=True, refuses=no_kernel("bincount_cpu", BOOL, FLOAT, COMPLEX))
def bincount(self: Array, weights: Array | None = None, minlength: int = 0) -> Array:
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    values = np.asarray(self)
    if values.ndim != 1 or not is_integral(values.dtype) or (values < 0).any():
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is None or not values.size:
        return jnp.asarray(np.bincount(values.astype(np.int64), minlength=minlength))
    if weights.shape != self.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    dtype = np.float32 if weights.dtype == np.float32 else np.float64
    sums = np.bincount(values.astype(np.int64), np.asarray(weights, np.float64), minlength)
    return jnp.asarray(sums.astype(dtype))


@op(
    "repeat_interleave.Tensor",
    data_dependent=lambda repeats, output_size=None: output_size is None,
    refuses=no_kernel("repeat_interleave_cpu", FLOAT, COMPLEX),
)
def repeat_interleave(repeats: Array, output_size: int | None = None) -> Array:
    if repeats.ndim != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (np.int32, np.int64):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if output_size is not None:
        ends = jnp.cumsum(repeats)
        steps = jnp.arange(output_size, dtype=ends.dtype)
        return jnp.searchsorted(ends, steps, side="right").astype(repeats.dtype)
    counts = np.asarray(repeats)
    if (counts < 0).any():
        raise RuntimeError("repeats can not be negative")
    return jnp.asarray(np.repeat(np.arange(counts.shape[0], dtype=counts.dtype), counts))
