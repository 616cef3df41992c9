"""Writes through index tensors of all dimensions, and of the flat array: `index_put`, `put`."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from calque.ops.index.gather import index_key, index_shape, is_mask
from calque.ops.index.index_bounds import positions
from calque.ops.index.writes import accumulate_at, replace_at
from calque.ops.table.facts import facts
from calque.ops.table.helpers import cast
from calque.ops.table.promotion import type_name
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import within_all


@op("index_put", "_unsafe_index_put")
def index_put(self: Array, indices: Any, values: Array, accumulate: bool = False) -> Array:
    masks = [d for d, i in enumerate(indices) if is_mask(i)]
    if masks and values.size == 1 and not accumulate and len(indices) == 1:
        values = cast(values, self.dtype)  # PyTorch fills where the mask is set, and casts
    if self.dtype != values.dtype:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{type_name(self.dtype)} for the destination and {type_name(values.dtype)} for the "
            "source."
        )
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


facts("_unsafe_index_put", layout="meta_if_strided")
facts(
    "index_put",
    layout="meta_if_strided",
    writes_in_place=("fills",),
    autocast="widest",
    host_indices=True,
)


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
    """Writes values where a mask over the axes from `dim` on is set, with static shapes."""
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
    """Raise IndexError if a mask does not have the shape of the axes that it indexes."""
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
