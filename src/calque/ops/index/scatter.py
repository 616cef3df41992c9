"""Writes through an index tensor along one dimension: `index_add` and the like, `scatter`."""

import operator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.index.index_bounds import along, at_least_1d, on_axis, positions
from calque.ops.index.writes import accumulate_at, replace_at
from calque.ops.table.helpers import nan_of, wrap_dim
from calque.ops.table.number_range import Holds
from calque.ops.table.promotion import BOOL, COMPLEX, is_complex, is_integral, refuse
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import IN_SELF, INDEX, TensorArgument, within_dim

# One index vector along one dimension -----------------------------------------------------------


def _vector_key(self: Array, dim: int, index: Array, wrap: bool = False) -> tuple[Any, ...]:
    return on_axis(positions(at_least_1d(index), self.shape[dim], wrap), dim)


def _check_source(name: str, self: Array, dim: int, index: Array, source: Array) -> None:
    if index.ndim > 1:
        raise IndexError(f"{name}: Index is supposed to be a vector")
    if index.dtype not in (jnp.int32, jnp.int64):
        raise RuntimeError(f"{name}: Expected dtype int32/int64 for index")
    if self.dtype != source.dtype:
        raise RuntimeError(f"{name}: self and source expected to have the same dtype")
    if source.ndim and index.size != source.shape[dim]:
        raise RuntimeError(
            f"{name}: Number of indices ({index.size}) should be equal to source.size(dim): "
            f"({source.shape[dim]}), for dim: {dim}"
        )
    if not source.ndim and index.size != 1:
        raise IndexError(f"{name}: When source is scalar, index should have one element")


def _rows_within(self: TensorArgument, **named: Any) -> None:
    """Returns the check of an index, which for the rows of a matrix differs from that for a
    vector."""
    inside = within_dim(IndexError, IN_SELF) if self.ndim < 2 else within_dim(RuntimeError, INDEX)
    inside(self=self, **named)


@op(
    "index_add",
    writes=("exact_dtype", "changes"),
    values=_rows_within,
    numbers=Holds("alpha", like="self"),
)
def index_add(self: Array, dim: int, index: Array, source: Array, alpha: Any = 1) -> Array:
    target, dim = at_least_1d(self), wrap_dim(dim, self.ndim)
    _check_source("index_add_()", self, dim, index, source)
    _check_ranks("index_add_()", self, source)
    source = at_least_1d(source)
    _check_rest("index_add_()", target, dim, source)
    if not (isinstance(alpha, int) and alpha == 1):
        source = source * jnp.asarray(alpha).astype(source.dtype)
    if index.size == 0 or target.size == 0:
        return self
    result = accumulate_at(target, _vector_key(target, dim, index), source, "add")
    return result.reshape(self.shape)


def _check_ranks(name: str, self: Array, source: Array) -> None:
    if self.ndim != source.ndim:
        raise _unlike(name, self, source)


def _check_rest(name: str, self: Array, dim: int, source: Array) -> None:
    rest = [n for a, n in enumerate(self.shape) if a != dim]
    if rest != [n for a, n in enumerate(source.shape) if a != dim]:
        raise _unlike(name, self, source)


def _unlike(name: str, self: Array, source: Array) -> RuntimeError:
    return RuntimeError(
        f"{name}: source tensor shape must match self tensor shape, excluding the specified "
        f"dimension. Got self.shape = {list(self.shape)} source.shape = {list(source.shape)}"
    )


def _index_copy_condition(self: Any, dim: int, index: Any, source: Any) -> None:
    along = source.shape[wrap_dim(dim, source.ndim)] if source.ndim else 1
    if index.ndim < 2 and source.ndim == self.ndim and index.size != along:
        raise IndexError(
            f"index_copy_(): Number of indices ({index.size}) should be equal to "
            f"source.size(dim) ({along})"
        )


@op(
    "index_copy",
    writes=("exact_dtype", "changes"),
    autocast="widest",
    values=within_dim(IndexError, f"index_copy_(): {INDEX}"),
    condition=_index_copy_condition,
)
def index_copy(self: Array, dim: int, index: Array, source: Array) -> Array:
    target, dim = at_least_1d(self), wrap_dim(dim, self.ndim)
    if index.dtype != jnp.int64:
        raise RuntimeError("index_copy_(): Expected a long tensor for index")
    _check_source("index_copy_()", self, dim, index, source)
    source = at_least_1d(source)
    if target.ndim == source.ndim:
        _check_rest("index_copy_()", target, dim, source)
    if index.size == 0 or target.size == 0:
        return self
    return replace_at(target, _vector_key(target, dim, index), source).reshape(self.shape)


_FITTING = Holds("value", like="self")


def _index_fill_condition(self: Any, dim: int, index: Any, value: Any) -> None:
    if index.dtype not in (jnp.int64, jnp.int32):
        raise IndexError("index_fill_(): Expected dtype int64 for index.")
    if is_complex(jnp.result_type(value)) and not is_complex(self.dtype):
        raise RuntimeError(
            "index_fill_(): Converting complex Scalar to non-complex type is not supported"
        )


@op(
    "index_fill.int_Scalar",
    "index_fill.int_Tensor",
    values=within_dim(IndexError, INDEX, negative=True),
    layout="copied",
    writes_in_place=("fills",),
    condition=_index_fill_condition,
    numbers=_FITTING,
)
def index_fill(self: Array, dim: int, index: Array, value: Any) -> Array:
    target, dim = at_least_1d(self), wrap_dim(dim, self.ndim)
    if index.dtype != jnp.int64:
        raise IndexError("index_fill_(): Expected dtype int64 for index.")
    if getattr(value, "ndim", 0):
        raise RuntimeError(
            "index_fill_ only supports a 0-dimensional value tensor, but got tensor with "
            f"{value.ndim} dimension(s)."
        )
    if index.size == 0 or target.size == 0:
        return self
    filling = jnp.asarray(value).astype(self.dtype)
    return replace_at(target, _vector_key(target, dim, index, wrap=True), filling).reshape(
        self.shape
    )


def _index_reduce_condition(
    self: Any, dim: int, index: Any, source: Any, reduce: str, *_: Any, **__: Any
) -> None:
    _known(reduce, ("prod", "mean", "amax", "amin"))


@op(
    "index_reduce",
    writes=("exact_dtype", "changes"),
    values=within_dim(IndexError, IN_SELF),
    condition=_index_reduce_condition,
)
def index_reduce(
    self: Array, dim: int, index: Array, source: Array, reduce: str, include_self: bool = True
) -> Array:
    target, dim = at_least_1d(self), wrap_dim(dim, self.ndim)
    _check_source("index_reduce_()", self, dim, index, source)
    _check_ranks("index_reduce_()", self, source)
    source = at_least_1d(source)
    _check_rest("index_reduce_()", target, dim, source)
    if target.ndim == 1:
        refuse("index_func_", self.dtype, BOOL)
    if index.size == 0 or target.size == 0:
        return self
    key = _vector_key(target, dim, index)
    return _reduce_at(target, key, source, reduce, include_self).reshape(self.shape)


# scatter ------------------------------------------------------------------------------------------

_REDUCTIONS = {
    "sum": "add",
    "add": "add",
    "mean": "add",
    "prod": "multiply",
    "multiply": "multiply",
    "amax": "max",
    "amin": "min",
}


def _identity(reduce: str, dtype: np.dtype) -> Any:
    if reduce in ("sum", "add", "mean"):
        return jnp.zeros((), dtype)
    if reduce in ("prod", "multiply"):
        return jnp.ones((), dtype)
    if dtype == jnp.bool_:
        return jnp.asarray(reduce == "amin")
    if is_integral(dtype):
        limits = jnp.iinfo(dtype)
        return jnp.asarray(limits.min if reduce == "amax" else limits.max, dtype)
    return jnp.asarray(-jnp.inf if reduce == "amax" else jnp.inf, dtype)


def _reduce_at(self: Array, key: Any, source: Any, reduce: str, include_self: bool) -> Array:
    if reduce not in _REDUCTIONS:
        raise RuntimeError(
            "reduce argument must be either sum, prod, mean, amax or amin, got " + reduce
        )
    if reduce in ("amax", "amin"):
        refuse(f"scatter_gather_tensor_cpu_reduce_{reduce}", self.dtype, COMPLEX)
    if reduce == "mean":
        refuse("scatter_gather_tensor_cpu_reduce_mean", self.dtype, BOOL)
    start = self if include_self else replace_at(self, key, _identity(reduce, self.dtype))
    result = accumulate_at(start, key, source, _REDUCTIONS[reduce])
    if reduce in ("amax", "amin"):

        def is_missing() -> Array:
            marks = jnp.isnan(source).astype(jnp.int32)
            return accumulate_at(jnp.isnan(start).astype(jnp.int32), key, marks, "max") > 0

        return nan_of(result, is_missing, self.dtype)
    if reduce != "mean":
        return result
    counts = jnp.ones(self.shape, self.dtype)
    if not include_self:
        counts = replace_at(counts, key, jnp.zeros((), self.dtype))
    counts = accumulate_at(counts, key, jnp.ones((), self.dtype), "add")
    counts = jnp.where(counts == 0, jnp.ones((), self.dtype), counts)
    return result // counts if is_integral(self.dtype) else result / counts


def _scatter(
    name: str, self: Array, dim: int, index: Array, source: Any, reduce: str | None, keep: bool
) -> Array:
    target, index = at_least_1d(self), at_least_1d(index)
    dim = wrap_dim(dim, target.ndim)
    strong = hasattr(source, "dtype") and not getattr(source, "weak_type", False)
    if strong and source.dtype != self.dtype:
        raise RuntimeError(f"{name}(): Expected self.dtype to be equal to src.dtype")
    if index.size == 0:
        return self
    if index.dtype not in (jnp.int32, jnp.int64):
        raise RuntimeError(f"{name}(): Expected dtype int32/int64 for index")
    source = _matching_source(name, target, dim, index, source)
    key = along(index, dim, target.ndim, target.shape)
    if reduce is None:
        return replace_at(target, key, source).reshape(self.shape)
    return _reduce_at(target, key, source, reduce, keep).reshape(self.shape)


def _matching_source(name: str, self: Array, dim: int, index: Array, source: Any) -> Array:
    too_long = [n for a, n in enumerate(index.shape) if a != dim and n > self.shape[a]]
    if index.ndim != self.ndim:
        raise RuntimeError("Index tensor must have the same number of dimensions as self tensor")
    if too_long:
        raise RuntimeError(
            f"Expected index {list(index.shape)} to be no larger than self {list(self.shape)} "
            f"apart from dimension {dim}"
        )
    if getattr(source, "weak_type", False) or not hasattr(source, "dtype"):
        return jnp.asarray(source).astype(self.dtype)
    source = at_least_1d(source)
    if source.ndim != index.ndim or any(map(operator.gt, index.shape, source.shape)):
        raise RuntimeError(
            f"Expected index {list(index.shape)} to be no larger than src {list(source.shape)}"
        )
    return source[tuple(slice(n) for n in index.shape)]


@op("scatter.src", writes=("exact_dtype", "changes"), values=within_dim(RuntimeError, INDEX))
def scatter_src(self: Array, dim: int, index: Array, src: Array) -> Array:
    return _scatter("scatter", self, dim, index, src, None, True)


@op(
    "scatter.value",
    writes=("exact_dtype", "changes"),
    values=within_dim(RuntimeError, INDEX),
    numbers=_FITTING,
)
def scatter_value(self: Array, dim: int, index: Array, value: Any) -> Array:
    return _scatter("scatter", self, dim, index, _everywhere(value, self, index), None, True)


@op("scatter.reduce", writes=("exact_dtype", "changes"), values=within_dim(RuntimeError, INDEX))
def scatter_with(self: Array, dim: int, index: Array, src: Array, reduce: str) -> Array:
    return _scatter("scatter", self, dim, index, src, _older(reduce), True)


@op(
    "scatter.value_reduce",
    writes=("exact_dtype", "changes"),
    values=within_dim(RuntimeError, INDEX),
    numbers=_FITTING,
)
def scatter_value_with(self: Array, dim: int, index: Array, value: Any, reduce: str) -> Array:
    source = _everywhere(value, self, index)
    return _scatter("scatter", self, dim, index, source, _older(reduce), True)


def _everywhere(value: Any, self: Array, index: Array) -> Array:
    """Returns a number as an array of the index's shape; JAX has no weak bools that would
    distinguish `False` from a tensor.
    """
    return jnp.broadcast_to(jnp.asarray(value).astype(self.dtype), index.shape)


def _older(reduce: str) -> str:
    if reduce not in ("add", "multiply"):
        raise RuntimeError("reduce argument must be either add or multiply.")
    return reduce


@op(
    "scatter_add",
    writes=("exact_dtype", "changes"),
    autocast="widest",
    values=within_dim(RuntimeError, INDEX),
)
def scatter_add(self: Array, dim: int, index: Array, src: Array) -> Array:
    return _scatter("scatter_add", self, dim, index, src, "sum", True)


def _known(reduce: str, names: tuple[str, ...]) -> None:
    if reduce not in names:
        raise RuntimeError(f"reduce argument must be one of {', '.join(names)}, got {reduce}.")


def _scatter_reduce_condition(
    self: Any, dim: int, index: Any, src: Any, reduce: str, *_: Any, **__: Any
) -> None:
    _known(reduce, ("sum", "prod", "mean", "amax", "amin"))


@op(
    "scatter_reduce.two",
    writes=("exact_dtype", "changes"),
    values=within_dim(RuntimeError, INDEX),
    condition=_scatter_reduce_condition,
)
def scatter_reduce(
    self: Array, dim: int, index: Array, src: Array, reduce: str, include_self: bool = True
) -> Array:
    return _scatter("scatter_reduce", self, dim, index, src, reduce, include_self)
