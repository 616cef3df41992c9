"""The rules of `selection`, for a number of elements that is known in advance.

Each takes the operator's arguments and returns the number, as an array, and a function that
computes the results for a given number. A program computes both, and compares the number with the
one that it was compiled for. If the operator refuses its arguments, the number is -1.
"""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.table.helpers import wrap_dim
from calque.ops.table.registry import canonical

Sized = tuple[Array, Callable[[int], Any]]
SIZED: dict[str, Callable[..., Sized]] = {}
"""The sized forms by the name of the operator."""


def sized(name: str) -> Callable[[Callable[..., Sized]], Callable[..., Sized]]:
    """Add a function to the table."""

    def register(function: Callable[..., Sized]) -> Callable[..., Sized]:
        SIZED[canonical(name)] = function
        return function

    return register


def positions(mask: Array, size: int) -> list[Array]:
    """Returns the `size` positions at which a mask is set, as an array for each axis."""
    return [p.astype(np.int64) for p in jnp.nonzero(mask, size=size, fill_value=0)]


def _count(mask: Array) -> Array:
    return jnp.count_nonzero(mask).astype(np.int64)


@sized("nonzero")
def nonzero(self: Array) -> Sized:
    def results(size: int) -> Array:
        if self.ndim == 0 or size == 0:
            return jnp.zeros((size, self.ndim), np.int64)
        return jnp.stack(positions(self, size), axis=1)

    return _count(self), results


@sized("masked_select")
def masked_select(self: Array, mask: Array) -> Sized:
    if mask.dtype != np.bool_:
        raise RuntimeError(f"masked_select: expected BoolTensor for mask, but got {mask.dtype}")
    values, chosen = (part.reshape(-1) for part in jnp.broadcast_arrays(self, mask))
    return _count(chosen), lambda size: values[positions(chosen, size)[0]] if size else values[:0]


# Runs of equal elements ---------------------------------------------------------------------------


def _runs(rows: Array) -> tuple[Array, Array, Callable[[int], tuple[Array, Array]]]:
    """Returns the number of runs of equal rows, the run of each row, and a function from the number
    to the first row and the length of each run.
    """
    count = rows.shape[0]
    differs = (rows[1:] != rows[:-1]).any(axis=tuple(range(1, rows.ndim)))
    first = jnp.concatenate([jnp.ones(min(count, 1), bool), differs])

    def of(size: int) -> tuple[Array, Array]:
        if not count:
            return rows, jnp.zeros(0, np.int64)
        starts = positions(first, size)[0]
        return rows[starts], jnp.diff(starts, append=np.int64(count))

    return _count(first), jnp.cumsum(first).astype(np.int64) - 1, of


def _in_order(rows: Array) -> Array:
    """Returns the order that sorts rows lexicographically."""
    if rows.ndim == 1:
        return jnp.argsort(rows)
    columns = rows.reshape(rows.shape[0], math.prod(rows.shape[1:])).T
    if not columns.size:
        return jnp.arange(rows.shape[0])
    return jnp.lexsort(columns[::-1])


def _sorted_runs(rows: Array) -> tuple[Array, Array, Callable[[int], tuple[Array, Array]]]:
    order = _in_order(rows)
    count, runs, of = _runs(rows[order])
    return count, jnp.zeros_like(runs).at[order].set(runs), of


def _optional(part: Array, wanted: bool) -> Array:
    return part.astype(np.int64) if wanted else jnp.zeros(0, np.int64)


@sized("_unique2")
def unique2(
    self: Array, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Sized:
    count, inverse, of = _sorted_runs(self.reshape(-1))

    def results(size: int) -> tuple[Array, ...]:
        found, counts = of(size)
        inverses = _optional(inverse.reshape(self.shape), return_inverse)
        return found, inverses, _optional(counts, return_counts)

    return count, results


@sized("_unique")
def unique(self: Array, sorted: bool = True, return_inverse: bool = False) -> Sized:
    count, results = unique2(self, sorted, return_inverse)
    return count, lambda size: results(size)[:2]


@sized("unique_dim")
def unique_dim(
    self: Array,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Sized:
    axis = wrap_dim(dim, self.ndim)
    if not self.size:
        none = jnp.zeros(self.shape[axis], np.int64)
        results = (self, _optional(none, return_inverse), _optional(none, return_counts))
        return jnp.asarray(self.shape[axis], np.int64), lambda size: results
    count, inverse, of = _sorted_runs(jnp.moveaxis(self, axis, 0))
    return count, _along(axis, inverse, of, return_inverse, return_counts)


@sized("unique_dim_consecutive")
def unique_dim_consecutive(
    self: Array, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> Sized:
    axis = wrap_dim(dim, self.ndim)
    rows = jnp.moveaxis(self, axis, 0) if self.ndim else self.reshape(1)
    count, inverse, of = _runs(rows)
    return count, _along(axis, inverse, of, return_inverse, return_counts)


def _along(axis: int, inverse: Array, of: Any, with_inverse: bool, with_counts: bool) -> Any:
    def results(size: int) -> tuple[Array, ...]:
        found, counts = of(size)
        found = jnp.moveaxis(found, 0, axis)
        return found, _optional(inverse, with_inverse), _optional(counts, with_counts)

    return results


@sized("unique_consecutive")
def unique_consecutive(
    self: Array, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Sized:
    if dim is not None:
        return unique_dim_consecutive(self, dim, return_inverse, return_counts)
    count, inverse, of = _runs(self.reshape(-1))
    return count, _along(0, inverse.reshape(self.shape), of, return_inverse, return_counts)


# Counts -------------------------------------------------------------------------------------------


@sized("bincount")
def bincount(self: Array, weights: Array | None = None, minlength: int = 0) -> Sized:
    if self.ndim != 1 or not jnp.issubdtype(self.dtype, jnp.integer):
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != self.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    count = jnp.asarray(minlength, np.int64)
    if self.size:
        count = jnp.maximum(self.max().astype(np.int64) + 1, minlength)
        count = jnp.where(self.min() < 0, -1, count)

    def results(size: int) -> Array:
        if weights is None:
            return jnp.bincount(self, length=size).astype(np.int64)
        dtype = np.float32 if weights.dtype == np.float32 else np.float64
        return jnp.bincount(self, weights.astype(np.float64), length=size).astype(dtype)

    return count, results


@sized("repeat_interleave.Tensor")
def repeat_interleave(repeats: Array, output_size: int | None = None) -> Sized:
    if repeats.ndim != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (np.int32, np.int64):
        raise RuntimeError("repeats has to be Long or Int tensor")
    ends = jnp.cumsum(repeats)

    def results(size: int) -> Array:
        steps = jnp.arange(size, dtype=ends.dtype)
        return jnp.searchsorted(ends, steps, side="right").astype(repeats.dtype)

    total = repeats.sum().astype(np.int64)
    return jnp.where((repeats < 0).any(), -1, total), results
