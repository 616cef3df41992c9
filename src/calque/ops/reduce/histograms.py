"""Histograms: counts of elements in bins."""

import math
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from calque.ops.table.facts import no_kernel
from calque.ops.table.helpers import maximum, minimum
from calque.ops.table.promotion import BOOL, COMPLEX
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import TensorArgument


def _even_bins(values: Array, low: Any, high: Any, bins: int) -> tuple[Array, Array]:
    """Returns the bin of each element, for equal bins over [low, high], and a mask of those in a
    bin."""
    inside = (values >= low) & (values <= high)
    if jnp.issubdtype(values.dtype, jnp.integer):
        place = (values - low).astype(jnp.int64) * bins // (high - low).astype(jnp.int64)
    else:
        place = jnp.floor((values - low) * bins / (high - low))
    place = jnp.where(inside, place, 0).astype(jnp.int32)
    return jnp.minimum(place, bins - 1), inside


def _range_of(values: Array, low: Any, high: Any) -> tuple[Array, Array]:
    """Returns the range of histc: the given one or, if that is empty, the values' range, widened if
    empty.
    """
    low, high = jnp.asarray(low).astype(values.dtype), jnp.asarray(high).astype(values.dtype)
    if values.size:
        same = low == high
        low, high = jnp.where(same, minimum(values), low), jnp.where(same, maximum(values), high)
    return _widened(low, high, 1.0)


def _widened(low: Array, high: Array, margin: float) -> tuple[Array, Array]:
    same, step = low == high, jnp.asarray(margin, low.dtype)
    return jnp.where(same, low - step, low), jnp.where(same, high + step, high)


def _outer_edges(values: Array, range: Any) -> tuple[Array, Array]:
    """Returns the range of a histogram: the given one or, if there is none, that of the values."""
    if range is not None:
        low, high = (jnp.asarray(bound).astype(values.dtype) for bound in range)
    elif values.size:
        low, high = minimum(values), maximum(values)
    else:
        low, high = jnp.zeros((), values.dtype), jnp.ones((), values.dtype)
    return _widened(low, high, 0.5)


def _count(place: Array, inside: Array, bins: int, weight: Any, dtype: Any) -> Array:
    added = jnp.where(inside, jnp.asarray(weight).astype(dtype), jnp.zeros((), dtype))
    return jnp.zeros((bins,), dtype).at[place].add(added, mode="drop")


def _check_finite(what: str, self: TensorArgument, bounds: Any) -> None:
    """Raise RuntimeError if the range of the bins is infinite or NaN."""
    if bounds is None:
        values = self.values() if self.is_float else None
        if values is None:
            return
        bounds = values.min(), values.max()
    if not all(map(math.isfinite, bounds)):
        raise RuntimeError(f"{what} range of [{bounds[0]}, {bounds[1]}] is not finite")


def _histc_range(self: TensorArgument, min: Any = 0, max: Any = 0, **_: Any) -> None:
    if min > max:
        raise RuntimeError("torch.histc: max must be larger than min")
    _check_finite("torch.histc:", self, (min, max) if min != max else None)


def _histogram_range(self: TensorArgument, range: Any = None, **_: Any) -> None:
    if range is not None and range[0] > range[1]:
        raise RuntimeError(
            "torch.histogramdd: min should not exceed max, but got min "
            f"{range[0]} max {range[1]} for dimension 0"
        )
    _check_finite("torch.histogramdd: dimension 0's", self, range)


@op(
    "histc",
    writes=("exact_dtype",),
    refuses=no_kernel("histogram_cpu", BOOL, COMPLEX),
    numbers=_histc_range,
)
def histc(self: Array, bins: int = 100, min: Any = 0, max: Any = 0) -> Array:
    if bins <= 0:
        raise RuntimeError(f"torch.histogram(): bins must be > 0, but got {bins} for dimension 0")
    values = self.reshape(-1)
    low, high = _range_of(values, min, max)
    place, inside = _even_bins(values, low, high, bins)
    return _count(place, inside, bins, 1, self.dtype)


def _histogram_condition(self: Any, bins: int = 100, *_: Any, **__: Any) -> None:
    if bins <= 0:
        raise RuntimeError(f"torch.histogram(): bins must be > 0, but got {bins} for dimension 0")


@op(
    "histogram.bin_ct",
    writes=("exact_dtype",),
    numbers=_histogram_range,
    condition=_histogram_condition,
)
def histogram(
    self: Array,
    bins: int = 100,
    range: Any = None,
    weight: Array | None = None,
    density: bool = False,
) -> tuple[Array, Array]:
    values = self.reshape(-1)
    low, high = _outer_edges(values, range)
    edges = jnp.linspace(low, high, bins + 1, dtype=self.dtype)
    place, inside = _even_bins(values, low, high, bins)
    # Rounding may have put an element on the wrong side of a returned edge.
    place = jnp.where(values < edges[place], place - 1, place)
    place = jnp.where((values >= edges[place + 1]) & (place + 1 < bins), place + 1, place)
    return _weighted(place, inside, edges, weight, density, self.dtype), edges


@op("histogram.bins_tensor", writes=("exact_dtype",))
def histogram_edges(
    self: Array, bins: Array, weight: Array | None = None, density: bool = False
) -> tuple[Array, Array]:
    values = self.reshape(-1)
    place = jnp.searchsorted(bins, values, side="right") - 1
    place = jnp.where(values == bins[-1], bins.shape[0] - 2, place)
    inside = (values >= bins[0]) & (values <= bins[-1])
    return _weighted(place, inside, bins, weight, density, self.dtype), bins


def _weighted(
    place: Array, inside: Array, edges: Array, weight: Array | None, density: bool, dtype: Any
) -> Array:
    added = 1 if weight is None else weight.reshape(-1)
    counts = _count(jnp.maximum(place, 0), inside, edges.shape[0] - 1, added, dtype)
    return counts / counts.sum() / jnp.diff(edges) if density else counts


def _histogramdd_condition(
    self: Any, bins: Any, range: Any = None, weight: Any = None, density: bool = False
) -> None:
    if len(bins) != self.shape[-1]:
        raise RuntimeError(
            "histogramdd: The size of bins must be equal to the innermost dimension of the input."
        )
    if weight is not None and weight.shape != self.shape[:-1]:
        raise RuntimeError(
            "torch.histogramdd: if weight tensor is provided it should have the same shape as the "
            "input tensor excluding its innermost dimension, but got input with shape "
            f"{list(self.shape)} and weight with shape {list(weight.shape)}"
        )


def _histogramdd_range(self: TensorArgument, bins: Any, range: Any = None, **_: Any) -> None:
    values = self.values() if self.is_float and range is None else None
    if values is None or values.size == 0:
        return
    for axis, column in enumerate(values.reshape(-1, values.shape[-1]).T):
        bounds = column.min(), column.max()
        if not all(map(math.isfinite, bounds)):
            raise RuntimeError(
                f"torch.histogramdd: dimension {axis}'s range [{bounds[0]}, {bounds[1]}] is not "
                "finite"
            )


@op("_histogramdd_bin_edges", numbers=_histogramdd_range, condition=_histogramdd_condition)
def histogramdd_bin_edges(
    self: Array,
    bins: Any,
    range: Any = None,
    weight: Array | None = None,
    density: bool = False,
) -> list[Array]:
    values = self.reshape(math.prod(self.shape[:-1]), self.shape[-1])
    edges = []
    for axis, count in enumerate(bins):
        bounds = range[2 * axis : 2 * axis + 2] if range else None
        low, high = _outer_edges(values[:, axis], bounds)
        edges.append(jnp.linspace(low, high, count + 1, dtype=self.dtype))
    return edges


@op("_histogramdd_from_bin_cts", condition=_histogramdd_condition)
def histogramdd_counts(
    self: Array,
    bins: Any,
    range: Any = None,
    weight: Array | None = None,
    density: bool = False,
) -> Array:
    edges = histogramdd_bin_edges(self, bins, range, weight, density)
    return histogramdd_edges(self, edges, weight, density)


@op("_histogramdd_from_bin_tensors")
def histogramdd_edges(
    self: Array, bins: Any, weight: Array | None = None, density: bool = False
) -> Array:
    values = self.reshape(math.prod(self.shape[:-1]), self.shape[-1])
    inside = jnp.ones(values.shape[:1], bool)
    flat = jnp.zeros(values.shape[:1], jnp.int32)
    for axis, edges in enumerate(bins):
        column = values[:, axis]
        place = jnp.searchsorted(edges, column, side="right") - 1
        place = jnp.where(column == edges[-1], edges.shape[0] - 2, place).astype(jnp.int32)
        inside &= (column >= edges[0]) & (column <= edges[-1])
        flat = flat * (edges.shape[0] - 1) + lax.max(place, jnp.zeros_like(place))
    shape = [edges.shape[0] - 1 for edges in bins]
    added = 1 if weight is None else weight.reshape(-1)
    counts = _count(flat, inside, math.prod(shape), added, self.dtype).reshape(shape)
    if not density:
        return counts
    counts = counts / counts.sum()
    for axis, edges in enumerate(bins):
        widths = [1] * len(bins)
        widths[axis] = edges.shape[0] - 1
        counts = counts / jnp.diff(edges).reshape(widths)
    return counts
