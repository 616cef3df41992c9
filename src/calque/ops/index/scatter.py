"""Writes through index tensors: index_put, index_add and their kin, scatter and its reductions."""

import operator
from functools import reduce as fold
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.index.gather import index_key, index_shape, is_mask
from calque.ops.index.index_bounds import along, at_least_1d, on_axis, positions
from calque.ops.table.facts import facts
from calque.ops.table.given import IN_SELF, INDEX, Given, within_all, within_dim
from calque.ops.table.helpers import wrap_dim
from calque.ops.table.promotion import is_complex, is_integral
from calque.ops.table.registry import op

_DROP: dict[str, Any] = {"mode": "drop", "wrap_negative_indices": False}


def accumulate_at(self: Array, key: Any, values: Any, how: str) -> Array:
    """`self` with values added, multiplied, maximized or minimized in where a key points."""
    if self.dtype == jnp.bool_ and how in ("add", "multiply"):
        counted = accumulate_at(self.astype(jnp.int32), key, values.astype(jnp.int32), how)
        return counted != 0
    return getattr(self.at[key], how)(values, **_DROP)


def replace_at(self: Array, key: Any, values: Any) -> Array:
    """`self` with values written where a key points."""
    return self.at[key].set(values, **_DROP)


# index_put ----------------------------------------------------------------------------------------


@op("index_put", "_unsafe_index_put")
def index_put(self: Array, indices: Any, values: Array, accumulate: bool = False) -> Array:
    if self.dtype != values.dtype:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{self.dtype} for the destination and {values.dtype} for the source."
        )
    masks = [d for d, i in enumerate(indices) if is_mask(i)]
    if len(masks) == 1 and all(i is None or is_mask(i) for i in indices):
        return _put_masked(self, masks[0], indices[masks[0]] != 0, values, accumulate)
    if masks:
        raise IndexError("a mask among several indices selects a number of elements that varies")
    key = index_key(self, indices)
    shape = index_shape(self.shape, indices)
    _check_values(values.shape, shape)
    if self.size == 0 or values.size == 0 or 0 in shape:
        return self
    if not accumulate:
        return replace_at(self, key, values)
    return accumulate_at(self, key, values, "add")


@op("_index_put_impl", writes_in_place=("fills",), host_indices=True)
def index_put_impl(
    self: Array, indices: Any, values: Array, accumulate: bool = False, unsafe: bool = False
) -> Array:
    return index_put(self, indices, values, accumulate)


@op("_unsafe_masked_index_put_accumulate", layout="meta_if_strided")
def unsafe_masked_index_put(self: Array, mask: Array, indices: Any, values: Array) -> Array:
    masked = jnp.where(mask, values, jnp.zeros((), values.dtype))
    return index_put(self, indices, masked, True)


def _check_values(values: tuple[int, ...], shape: tuple[int, ...]) -> None:
    lead = values[: max(len(values) - len(shape), 0)]
    tail = zip(reversed(values), reversed(shape), strict=False)
    if any(n != 1 for n in lead) or any(v not in (1, n) for v, n in tail):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values)} cannot be broadcast to indexing "
            f"result of shape {list(shape)}"
        )


def _put_masked(self: Array, dim: int, mask: Array, values: Array, accumulate: bool) -> Array:
    """Values written where a mask over the axes from `dim` on is set: no index, static shapes."""
    check_mask(self.shape, dim, mask.shape)
    before, after = self.shape[:dim], self.shape[dim + mask.ndim :]
    ndim = len(before) + 1 + len(after)
    extra = values.ndim - ndim
    values = values.reshape(values.shape[extra:] if extra > 0 else (1,) * -extra + values.shape)
    chosen = values.shape[dim]
    if chosen == 1:
        values = values.reshape(*values.shape[:dim], *(1,) * mask.ndim, *values.shape[dim + 1 :])
    elif chosen == 0:
        return self
    else:
        order = jnp.cumsum(mask.reshape(-1), dtype=jnp.int32) - 1
        values = jnp.take(values, order.reshape(mask.shape), axis=dim, mode="clip")
    _check_values(values.shape, self.shape)
    new = (
        self | values
        if accumulate and self.dtype == jnp.bool_
        else (self + values if accumulate else values)
    )
    spread = mask.reshape(*mask.shape, *(1,) * len(after))
    return jnp.where(spread, new, self)


def check_mask(shape: tuple[int, ...], dim: int, mask: tuple[int, ...]) -> None:
    """Raise IndexError where a mask does not have the shape of the axes it stands for."""
    if dim + len(mask) > len(shape):
        raise IndexError(
            f"too many indices for tensor of dimension {len(shape)} (got {dim + len(mask)})"
        )
    for axis, n in enumerate(mask):
        if shape[dim + axis] != n:
            raise IndexError(
                f"The shape of the mask {list(mask)} at index {axis} does not match the shape of "
                f"the indexed tensor {list(shape)} at index {dim + axis}"
            )


def _put_condition(self: Any, index: Any, source: Any, *_: Any, **__: Any) -> None:
    if index.dtype != jnp.int64:
        raise RuntimeError(f"put_(): Expected a long tensor for index, but got {index.dtype}")
    if self.dtype == source.dtype and index.size != source.size:
        raise IndexError(
            "put_(): Expected source and index to have the same number of elements, but got "
            f"source.numel() = {source.size}, index.numel() = {index.size}"
        )


@op(
    "put",
    layout="meta_if_strided",
    writes=("changes",),
    values=within_all,
    condition=_put_condition,
)
def put(self: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    if self.dtype != source.dtype:
        raise RuntimeError("put_(): self and source expected to have the same dtype")
    if index.size != source.size:
        raise RuntimeError(
            "put_(): Expected source and index to have the same number of elements, but got "
            f"source.numel() = {source.size}, index.numel() = {index.size}"
        )
    if index.size == 0:
        return self
    flat, key = self.reshape(-1), positions(index.reshape(-1), self.size, wrap=True)
    values = source.reshape(-1)
    flat = accumulate_at(flat, key, values, "add") if accumulate else replace_at(flat, key, values)
    return flat.reshape(self.shape)


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


@op("index_add", writes=("exact_dtype", "changes"), values=within_dim(IndexError, IN_SELF))
def index_add(self: Array, dim: int, index: Array, source: Array, alpha: Any = 1) -> Array:
    target, dim = at_least_1d(self), wrap_dim(dim, self.ndim)
    _check_source("index_add_()", self, dim, index, source)
    source = at_least_1d(source)
    _check_rest("index_add_()", target, dim, source)
    if not (isinstance(alpha, int) and alpha == 1):
        source = source * jnp.asarray(alpha).astype(source.dtype)
    if index.size == 0 or target.size == 0:
        return self
    result = accumulate_at(target, _vector_key(target, dim, index), source, "add")
    return result.reshape(self.shape)


def _check_rest(name: str, self: Array, dim: int, source: Array) -> None:
    rest = [n for a, n in enumerate(self.shape) if a != dim]
    if rest != [n for a, n in enumerate(source.shape) if a != dim]:
        raise RuntimeError(
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
    layout="meta_if_strided",
    writes_in_place=("fills",),
    condition=_index_fill_condition,
)
def index_fill(self: Array, dim: int, index: Array, value: Any) -> Array:
    target, dim = at_least_1d(self), wrap_dim(dim, self.ndim)
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
    if index.size == 0 or target.size == 0:
        return self
    key = _vector_key(target, dim, index)
    return _reduce_at(target, key, at_least_1d(source), reduce, include_self).reshape(self.shape)


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
    start = self if include_self else replace_at(self, key, _identity(reduce, self.dtype))
    result = accumulate_at(start, key, source, _REDUCTIONS[reduce])
    if reduce != "mean":
        return result
    counts = jnp.ones(self.shape, self.dtype)
    if not include_self:
        counts = replace_at(counts, key, jnp.zeros((), self.dtype))
    counts = counts.at[key].add(jnp.ones((), self.dtype), **_DROP)
    counts = jnp.where(counts == 0, jnp.ones((), self.dtype), counts)
    return result // counts if is_integral(self.dtype) else result / counts


def _scatter(
    name: str, self: Array, dim: int, index: Array, source: Any, reduce: str | None, keep: bool
) -> Array:
    target, index = at_least_1d(self), at_least_1d(index)
    dim = wrap_dim(dim, target.ndim)
    if index.size == 0:
        return self
    if not jnp.issubdtype(index.dtype, jnp.integer):
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
    if source.dtype != self.dtype:
        raise RuntimeError(f"{name}(): Expected self.dtype to be equal to src.dtype")
    source = at_least_1d(source)
    if source.ndim != index.ndim or any(map(operator.gt, index.shape, source.shape)):
        raise RuntimeError(
            f"Expected index {list(index.shape)} to be no larger than src {list(source.shape)}"
        )
    return source[tuple(slice(n) for n in index.shape)]


@op("scatter.src", writes=("exact_dtype", "changes"), values=within_dim(RuntimeError, INDEX))
def scatter_src(self: Array, dim: int, index: Array, src: Array) -> Array:
    return _scatter("scatter", self, dim, index, src, None, True)


@op("scatter.value", writes=("exact_dtype", "changes"), values=within_dim(RuntimeError, INDEX))
def scatter_value(self: Array, dim: int, index: Array, value: Any) -> Array:
    return _scatter("scatter", self, dim, index, _everywhere(value, self, index), None, True)


@op("scatter.reduce", writes=("exact_dtype", "changes"), values=within_dim(RuntimeError, INDEX))
def scatter_with(self: Array, dim: int, index: Array, src: Array, reduce: str) -> Array:
    return _scatter("scatter", self, dim, index, src, _older(reduce), True)


@op(
    "scatter.value_reduce",
    writes=("exact_dtype", "changes"),
    values=within_dim(RuntimeError, INDEX),
)
def scatter_value_with(self: Array, dim: int, index: Array, value: Any, reduce: str) -> Array:
    source = _everywhere(value, self, index)
    return _scatter("scatter", self, dim, index, source, _older(reduce), True)


def _everywhere(value: Any, self: Array, index: Array) -> Array:
    """A number for each index; JAX has no weak bool that would tell `False` from a tensor."""
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


# Masks --------------------------------------------------------------------------------------------


@op("masked_fill.Scalar", "masked_fill.Tensor", layout="row_major", writes_in_place=("fills",))
def masked_fill(self: Array, mask: Array, value: Any) -> Array:
    if mask.dtype != jnp.bool_:
        raise RuntimeError(
            f"masked_fill_ only supports boolean masks, but got mask with dtype {mask.dtype}"
        )
    if getattr(value, "ndim", 0):
        raise RuntimeError(
            "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with "
            f"{value.ndim} dimension(s)."
        )
    if jnp.iscomplexobj(value) and not jnp.iscomplexobj(self):
        raise RuntimeError(f"value cannot be converted to type {self.dtype} without overflow")
    return jnp.where(mask, jnp.asarray(value).astype(self.dtype), self)


def _enough(self: Given, mask: Given, source: Given, **_: Any) -> None:
    """Raise RuntimeError where a mask has more ones than the source has elements."""
    values = mask.values() if mask.dtype == np.bool_ else None
    if values is None:
        return
    try:
        rest = np.broadcast_shapes(self.shape, mask.shape)
    except ValueError:  # what the rule refuses
        return
    count = int(np.count_nonzero(values)) * (int(np.prod(rest)) // max(values.size, 1))
    if count > source.size:
        raise RuntimeError(
            "masked_scatter: expected self and source to have same dtypes and source to have as "
            f"many elements as the mask has ones, but got {source.size} for {count}"
        )


def _masked_scatter_condition(self: Any, mask: Any, source: Any) -> None:
    if mask.dtype != jnp.bool_:
        raise RuntimeError(
            f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}"
        )


@op(
    "masked_scatter",
    writes_in_place=("computes_first",),
    values=_enough,
    condition=_masked_scatter_condition,
)
def masked_scatter(self: Array, mask: Array, source: Array) -> Array:
    if self.dtype != source.dtype:
        raise RuntimeError(
            "masked_scatter: expected self and source to have same dtypes but got "
            f"{self.dtype} and {source.dtype}"
        )
    shape = jnp.broadcast_shapes(self.shape, mask.shape)
    if source.size == 0 or 0 in shape:
        return jnp.broadcast_to(self, shape)
    mask = jnp.broadcast_to(mask, shape)
    order = jnp.cumsum(mask.reshape(-1), dtype=jnp.int32) - 1
    values = jnp.take(source.reshape(-1), order, mode="fill").reshape(shape)
    return jnp.where(mask, values, self)


@op("masked_scatter_backward")
def masked_scatter_backward(grad_output: Array, mask: Array, sizes: Any) -> Array:
    count = fold(operator.mul, sizes, 1)
    mask = jnp.broadcast_to(mask, grad_output.shape).reshape(-1)
    order = jnp.cumsum(mask, dtype=jnp.int32) - 1
    where = jnp.where(mask, order, jnp.int32(count))
    flat = replace_at(jnp.zeros((count,), grad_output.dtype), where, grad_output.reshape(-1))
    return flat.reshape(tuple(sizes))


facts("_unsafe_index_put", layout="meta_if_strided")
facts(
    "index_put",
    layout="meta_if_strided",
    writes_in_place=("fills",),
    autocast="widest",
    host_indices=True,
)
