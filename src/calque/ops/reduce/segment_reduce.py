"""Reductions of runs of elements along an axis: segment_reduce.

The runs are given by their lengths or offsets; each row of the axes before the reduced one has its
own runs.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.table.facts import no_kernel
from calque.ops.table.helpers import segment_maximum, segment_minimum, wrap_dim
from calque.ops.table.promotion import BOOL, COMPLEX, INT, RefusedDtype, opmath, type_name
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import TensorArgument

REDUCTIONS: dict[str, tuple[Any, float]] = {
    "sum": (jax.ops.segment_sum, 0.0),
    "mean": (jax.ops.segment_sum, 0.0),
    "prod": (jax.ops.segment_prod, 1.0),
    "max": (segment_maximum, -math.inf),
    "min": (segment_minimum, math.inf),
}
"""The function of each reduction, and its result for an empty segment."""

_ALSO_CALLED = {"amax": "max", "amin": "min"}


@dataclass(frozen=True)
class _Runs:
    """The runs of some data.

    Attributes:
        place: the run of each element, numbered through all rows; `count` for elements in no run.
        lengths: the length of each run, in a shape that broadcasts against the results.
        count: the number of runs.
        shape: the shape of the data, with the rows and the reduced axis merged.
        results: the shape of the results.
    """

    place: Array
    lengths: Array
    count: int
    shape: tuple[int, ...]
    results: tuple[int, ...]

    def reduce(self, function: Any, x: Array) -> Array:
        """Returns the result of a reduction for each run."""
        total = function(x.reshape(self.shape), self.place, self.count)
        return total.reshape(self.results)

    def spread(self, results: Array, like: Array) -> Array:
        """Returns for each element the result of its run; zero for elements in no run."""
        rows = results.reshape(self.count, *self.shape[1:])
        taken = rows.at[self.place].get(mode="fill", fill_value=0)
        return taken.reshape(like.shape)


def _runs(data: Array, axis: int, lengths: Array | None, offsets: Array | None) -> _Runs:
    if lengths is None and offsets is None:
        raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined.")
    if offsets is None:
        offsets = jnp.pad(jnp.cumsum(lengths, axis=-1), [(0, 0)] * axis + [(1, 0)])
    rows, size = math.prod(data.shape[:axis]), data.shape[axis]
    edges = offsets.reshape(rows, offsets.shape[-1]).astype(jnp.int32)
    segments = edges.shape[1] - 1
    at = jnp.arange(size, dtype=jnp.int32)
    place = jax.vmap(lambda row: jnp.searchsorted(row, at, side="right"))(edges)
    inside = (place > 0) & (place <= segments)
    flat = jnp.arange(rows, dtype=jnp.int32)[:, None] * segments + place.astype(jnp.int32) - 1
    behind = data.shape[axis + 1 :]
    return _Runs(
        jnp.where(inside, flat, rows * segments).reshape(-1),
        jnp.diff(edges, axis=-1).reshape(*data.shape[:axis], segments, *(1,) * len(behind)),
        rows * segments,
        (rows * size, *behind),
        (*data.shape[:axis], segments, *behind),
    )


def _check(reduce: str, data: Array, lengths: Any, offsets: Any, axis: int) -> tuple[str, int]:
    """Returns the reduction's name in `REDUCTIONS` and the axis, counted from the first."""
    reduce = _ALSO_CALLED.get(reduce, reduce)
    if reduce not in REDUCTIONS:
        raise RuntimeError(
            f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}"
        )
    axis = wrap_dim(axis, data.ndim)
    given = lengths if lengths is not None else offsets
    if given is not None and data.shape[:axis] != given.shape[:-1]:
        raise RuntimeError(
            f"segment_reduce(): the lengths or offsets of shape {list(given.shape)} do not fit "
            f"data of shape {list(data.shape)} along axis {axis}"
        )
    return reduce, axis


def _runs_condition(
    data: Any, reduce: str, lengths: Any = None, indices: Any = None, offsets: Any = None, **_: Any
) -> None:
    kind, given = ("lengths", lengths) if lengths is not None else ("offsets", offsets)
    if given is not None and given.dtype not in (np.int32, np.int64):
        raise RefusedDtype(
            f'"_segment_reduce_{kind}_cpu_kernel1" not implemented for {type_name(given.dtype)!r}'
        )


def _lengths_fit(
    data: TensorArgument,
    reduce: str,
    lengths: TensorArgument | None = None,
    indices: Any = None,
    offsets: Any = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> None:
    counts = None if lengths is None or unsafe else lengths.values()
    if counts is None or not counts.ndim:
        return
    if (counts < 0).any():
        raise RuntimeError("lengths contains negative value!")
    if (counts.sum(-1) != data.shape[counts.ndim - 1]).any():
        raise RuntimeError(
            "segment_reduce(): Expected all rows of lengths along axis to sum to "
            "data.size(lengths.dim()-1) when !unsafe."
        )


@op(
    "segment_reduce",
    static=("initial",),
    refuses=no_kernel("_segment_reduce_cpu", INT, BOOL, COMPLEX),
    condition=_runs_condition,
    values=_lengths_fit,
)
@opmath
def segment_reduce(
    data: Array,
    reduce: str,
    lengths: Array | None = None,
    indices: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Array:
    if indices is not None:
        raise RuntimeError("segment_reduce(): indices based reduction is not supported yet.")
    reduce, axis = _check(reduce, data, lengths, offsets, axis)
    runs = _runs(data, axis, lengths, offsets)
    function, nothing = REDUCTIONS[reduce]
    total = runs.reduce(function, data)
    total = jnp.where(runs.lengths == 0, jnp.asarray(nothing, data.dtype), total)
    if initial is not None:
        start = jnp.asarray(initial, data.dtype)
        join = {"prod": jnp.multiply, "max": jnp.maximum, "min": jnp.minimum}.get(reduce, jnp.add)
        total = join(total, start)
    if reduce != "mean":
        return total
    mean = total / jnp.maximum(runs.lengths, 1).astype(data.dtype)
    return jnp.where(runs.lengths == 0, jnp.nan, mean) if initial is None else mean


@op("_segment_reduce_backward", static=("initial",))
@opmath
def segment_reduce_backward(
    grad: Array,
    output: Array,
    data: Array,
    reduce: str,
    lengths: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    initial: Any = None,
) -> Array:
    """Equal extrema share their gradient; a factor of zero gets the product of the others."""
    reduce, axis = _check(reduce, data, lengths, offsets, axis)
    runs = _runs(data, axis, lengths, offsets)
    if reduce == "sum":
        return runs.spread(grad, data)
    if reduce == "mean":
        return runs.spread(grad / jnp.maximum(runs.lengths, 1).astype(grad.dtype), data)
    if reduce in ("max", "min"):
        chosen = (data == runs.spread(output, data)) | jnp.isnan(data)
        count = runs.reduce(jax.ops.segment_sum, chosen.astype(data.dtype))
        shared = runs.spread(grad / jnp.maximum(count, 1), data)
        return jnp.where(chosen, shared, jnp.zeros_like(shared))
    missing = (data == 0) | jnp.isnan(data)
    rest = runs.reduce(jax.ops.segment_prod, jnp.where(missing, 1, data))
    rest = rest if initial is None else rest * initial
    alone = runs.spread(runs.reduce(jax.ops.segment_sum, missing.astype(data.dtype)), data) == 1
    others = jnp.where(alone, runs.spread(rest, data), runs.spread(output, data))
    divided = runs.spread(output, data) / jnp.where(missing, 1, data)
    return runs.spread(grad, data) * jnp.where(missing, others, divided)
