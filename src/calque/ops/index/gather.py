"""Reads through index tensors: index, gather, index_select, take, and their gradients."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.index.index_bounds import at_least_1d, on_axis, positions, take
from calque.ops.index.writes import accumulate_at
from calque.ops.table.facts import facts
from calque.ops.table.helpers import wrap_dim
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import IN_SELF, INDEX, within_all, within_dim

_INDEX_DTYPES = frozenset(map(np.dtype, ("int64", "int32", "uint8", "bool")))


def is_mask(index: Any) -> bool:
    """Returns True if an index is a mask, of dtype bool or uint8."""
    return index is not None and index.dtype in (jnp.bool_, jnp.uint8)


def index_key(self: Array, indices: Any) -> tuple[Any, ...]:
    """Returns the NumPy key for PyTorch's list of index tensors (None for a whole axis).

    Raises:
        IndexError: too many indices, or index tensors that cannot be broadcast together.
    """
    if len(indices) > self.ndim:
        raise IndexError(
            f"too many indices for tensor of dimension {self.ndim} (got {len(indices)})"
        )
    present = [i for i in indices if i is not None]
    for i in present:
        if i.dtype not in _INDEX_DTYPES:
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    try:
        jnp.broadcast_shapes(*(i.shape for i in present))
    except ValueError:
        shapes = ", ".join(str(list(i.shape)) for i in present)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}"
        ) from None
    return tuple(
        slice(None) if i is None else positions(i, n, wrap=True)
        for i, n in zip(indices, self.shape, strict=False)
    )


def index_shape(shape: tuple[int, ...], indices: Any) -> tuple[int, ...]:
    """Returns the shape of `self[indices]`, none of them a mask."""
    where = [d for d, i in enumerate(indices) if i is not None]
    if not where:
        return shape
    common: Any = jnp.broadcast_shapes(*(indices[d].shape for d in where))
    rest = [n for d, n in enumerate(shape) if d not in where]
    first = where[0] if where[-1] - where[0] + 1 == len(where) else 0
    return (*rest[:first], *common, *rest[first:])


@op("index.Tensor", "_unsafe_index.Tensor")
def index(self: Array, indices: Any) -> Array:
    if any(is_mask(i) for i in indices):
        raise IndexError(
            "the result of indexing with a mask has a shape that depends on its values"
        )
    key = index_key(self, indices)
    if self.size == 0:
        shape = index_shape(self.shape, indices)
        return jnp.broadcast_to(jnp.zeros((), self.dtype), shape)
    return take(self, key)


facts("_unsafe_index.Tensor", layout="meta_if_strided")
facts("index.Tensor", layout="meta_if_strided", host_indices=True)


@op("_unsafe_masked_index")
def unsafe_masked_index(self: Array, mask: Array, indices: Any, fill: Any) -> Array:
    return jnp.where(mask, index(self, indices), jnp.asarray(fill).astype(self.dtype))


@op("gather", writes=("exact_dtype", "apart"), values=within_dim(RuntimeError, INDEX))
def gather(self: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    shape = index.shape
    source, index = at_least_1d(self), at_least_1d(index)
    dim = wrap_dim(dim, source.ndim)
    _check_along("gather", source, dim, index)
    if index.size == 0:
        return jnp.zeros(shape, self.dtype)
    source = source[tuple(slice(None if a == dim else n) for a, n in enumerate(index.shape))]
    where = positions(index, source.shape[dim])
    where = jnp.where(where < 0, source.shape[dim], where)  # JAX would count from the end
    return jnp.take_along_axis(source, where, axis=dim, mode="fill").reshape(shape)


def _check_along(name: str, self: Array, dim: int, index: Array) -> None:
    if index.dtype not in (jnp.int32, jnp.int64) and index.size:
        raise RuntimeError(f"{name}(): Expected dtype int32/int64 for index")
    if index.size == 0:
        return
    if self.ndim != index.ndim:
        raise RuntimeError("Index tensor must have the same number of dimensions as input tensor")
    if any(i > n for a, (i, n) in enumerate(zip(index.shape, self.shape, strict=True)) if a != dim):
        raise RuntimeError(
            f"Size does not match at dimension {dim} expected index {list(index.shape)} to be no "
            f"larger than self {list(self.shape)} apart from dimension {dim}"
        )


@op("index_select", writes=("exact_dtype", "apart"), values=within_dim(IndexError, IN_SELF))
def index_select(self: Array, dim: int, index: Array) -> Array:
    if index.ndim > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    if index.dtype not in (jnp.int32, jnp.int64):
        raise RuntimeError("index_select(): Expected dtype int32 or int64 for index")
    dim = wrap_dim(dim, self.ndim)
    source, index = at_least_1d(self), at_least_1d(index)
    if source.size == 0:
        shape = (*source.shape[:dim], index.shape[0], *source.shape[dim + 1 :])
        return jnp.zeros(shape, self.dtype)
    result = take(source, on_axis(positions(index, source.shape[dim]), dim))
    return result.reshape(()) if self.ndim == 0 else result


@op("index_select_backward")
def index_select_backward(grad: Array, self_sizes: Any, dim: int, index: Array) -> Array:
    zeros = jnp.zeros(tuple(self_sizes), grad.dtype)
    key = on_axis(positions(index, zeros.shape[dim]), dim)
    return accumulate_at(zeros, key, grad, "add")


@op("take", writes=("exact_dtype", "apart"), values=within_all)
def take_flat(self: Array, index: Array) -> Array:
    if index.dtype != jnp.int64:
        raise RuntimeError("take(): Expected a long tensor for index")
    if index.size == 0:
        return jnp.zeros(index.shape, self.dtype)
    if self.size == 0:
        raise IndexError("take(): tried to take from an empty tensor")
    return take(self.reshape(-1), positions(index, self.size, wrap=True))
