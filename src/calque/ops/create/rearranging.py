"""Operators that rearrange the elements of tensors: joining, repeating, flipping, triangles."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from calque.ops.table.facts import facts
from calque.ops.table.helpers import wrap_dim, wrap_dims
from calque.ops.table.promotion import is_integral, result_type
from calque.ops.table.registry import op

# Joining ------------------------------------------------------------------------------------------


@op("cat", layout="meta_if_strided", writes=("apart", "cast_type_error"), autocast="widest")
def cat(tensors: Any, dim: int = 0) -> Array:
    if not tensors:
        raise RuntimeError("torch.cat(): expected a non-empty list of Tensors")
    dtype = result_type(*tensors)
    # PyTorch concatenates an empty 1-d tensor with tensors of any shape.
    full = [t for t in tensors if t.shape != (0,)]
    for place, tensor in enumerate(tensors):
        if tensor.ndim == 0:
            raise RuntimeError(
                f"zero-dimensional tensor (at position {place}) cannot be concatenated"
            )
    if not full:  # along any axis, be there one or not
        return jnp.zeros((0,), dtype)
    axis = wrap_dim(dim, full[0].ndim)
    _check_sizes(full, axis)
    return lax.concatenate([t.astype(dtype) for t in full], axis)


def _check_sizes(tensors: list[Array], axis: int) -> None:
    first = tensors[0].shape
    for place, tensor in enumerate(tensors[1:], 1):
        if tensor.ndim != len(first):
            raise RuntimeError(
                f"Tensors must have same number of dimensions: got {len(first)} and {tensor.ndim}"
            )
        for d, (n, m) in enumerate(zip(first, tensor.shape, strict=True)):
            if n != m and d != axis:
                raise RuntimeError(
                    f"Sizes of tensors must match except in dimension {axis}. Expected size {n} "
                    f"but got size {m} for tensor number {place} in the list."
                )


@op("stack", "_stack")
def stack(tensors: Any, dim: int = 0) -> Array:
    if not tensors:
        raise RuntimeError("stack expects a non-empty TensorList")
    first = tensors[0].shape
    for place, tensor in enumerate(tensors):
        if tensor.shape != first:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(first)} at entry 0 and "
                f"{list(tensor.shape)} at entry {place}"
            )
    axis = wrap_dim(dim, len(first) + 1)
    dtype = result_type(*tensors)
    return jnp.stack([t.astype(dtype) for t in tensors], axis=axis)


facts("stack", layout="meta_if_strided", writes=("cast_type_error",), autocast="widest")


@op("block_diag")
def block_diag(tensors: Any) -> Array:
    for place, tensor in enumerate(tensors):
        if tensor.ndim > 2:
            raise RuntimeError(
                "torch.block_diag: Input tensors must have 2 or fewer dimensions. Input "
                f"{place} has {tensor.ndim} dimensions"
            )
    dtype = result_type(*tensors)
    blocks = [jnp.atleast_2d(t).astype(dtype) for t in tensors]
    width = sum(b.shape[1] for b in blocks)
    rows, left = [], 0
    for block in blocks:
        right = width - left - block.shape[1]
        rows.append(jnp.pad(block, ((0, 0), (left, right))))
        left += block.shape[1]
    return jnp.concatenate(rows, axis=0)


# Repeating and turning ----------------------------------------------------------------------------


@op("repeat")
def repeat(self: Array, repeats: Any) -> Array:
    if len(repeats) < self.ndim:
        raise RuntimeError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of "
            "tensor"
        )
    if any(n < 0 for n in repeats):
        raise RuntimeError(f"Trying to create tensor with negative dimension: {list(repeats)}")
    return jnp.tile(self, tuple(repeats))


@op("flip", layout="meta_if_strided")
def flip(self: Array, dims: Any) -> Array:
    axes = wrap_dims(dims, self.ndim)
    return lax.rev(self, axes) if len(dims) and self.ndim else self


def _roll_condition(self: Any, shifts: Any, dims: Any = ()) -> None:
    if self.ndim == 0 and len(dims):
        raise IndexError(f"Dimension specified as {dims[0]} but tensor has no dimensions")


@op("roll", layout="images", condition=_roll_condition)
def roll(self: Array, shifts: Any, dims: Any = ()) -> Array:
    if not len(shifts):
        raise RuntimeError("`shifts` required")
    if not len(dims) and len(shifts) == 1:
        return jnp.roll(self.reshape(-1), shifts[0]).reshape(self.shape)
    if len(dims) != len(shifts):
        raise RuntimeError(
            f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}"
        )
    for dim in dims:
        wrap_dim(dim, self.ndim)
    if self.size == 0 or self.ndim == 0:
        return self
    return jnp.roll(self, tuple(shifts), tuple(dims))


@op("rot90", layout="meta")
def rot90(self: Array, k: int = 1, dims: Any = (0, 1)) -> Array:
    if len(dims) != 2:
        raise RuntimeError(f"expected total rotation dims == 2, but got dims = {len(dims)}")
    if self.ndim < 2:
        raise RuntimeError(f"expected total dims >= 2, but got total dims = {self.ndim}")
    if wrap_dim(dims[0], self.ndim) == wrap_dim(dims[1], self.ndim):
        raise RuntimeError(
            f"expected rotation dims to be different, but got dim0 = {dims[0]} and dim1 = {dims[1]}"
        )
    return jnp.rot90(self, k, tuple(dims))


# Triangles ----------------------------------------------------------------------------------------


def _below(rows: int, columns: int, diagonal: int) -> Array:
    """Returns True if column - row <= diagonal, for each element of a matrix."""
    row = lax.broadcasted_iota(jnp.int32, (rows, columns), 0)
    column = lax.broadcasted_iota(jnp.int32, (rows, columns), 1)
    return column - row <= max(min(diagonal, columns), -rows - 1)


def _check_matrix(name: str, array: Array) -> None:
    if array.ndim < 2:
        raise RuntimeError(f"{name}: input tensor must have at least 2 dimensions")


@op(
    "tril",
    writes=("exact_dtype", "computes_first", "fills"),
    writes_in_place=("computes_first", "fills"),
)
def tril(self: Array, diagonal: int = 0) -> Array:
    _check_matrix("tril", self)
    return jnp.where(
        _below(self.shape[-2], self.shape[-1], diagonal), self, jnp.zeros((), self.dtype)
    )


@op(
    "triu",
    writes=("exact_dtype", "computes_first", "fills"),
    writes_in_place=("computes_first", "fills"),
)
def triu(self: Array, diagonal: int = 0) -> Array:
    _check_matrix("triu", self)
    return jnp.where(
        _below(self.shape[-2], self.shape[-1], diagonal - 1), jnp.zeros((), self.dtype), self
    )


@op("trace")
def trace(self: Array) -> Array:
    if self.ndim != 2:
        raise RuntimeError("trace: expected a matrix")
    dtype = jnp.int64 if is_integral(self.dtype) else self.dtype
    return jnp.trace(self, dtype=dtype)


@op("diag_embed")
def diag_embed(self: Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    ndim = self.ndim + 1
    dim1, dim2 = wrap_dim(dim1, ndim), wrap_dim(dim2, ndim)
    if dim1 == dim2:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    if dim1 > dim2:
        dim1, dim2, offset = dim2, dim1, -offset
    size = self.shape[-1] + abs(offset)
    row = lax.broadcasted_iota(jnp.int32, (size, size), 0)
    column = lax.broadcasted_iota(jnp.int32, (size, size), 1)
    # Element i lies in row i, or in row i - offset below the main diagonal.
    places = [(0, 0)] * (self.ndim - 1) + [(max(-offset, 0), max(offset, 0))]
    by_row = jnp.pad(self, places)[..., :, None]
    matrix = jnp.where(column - row == offset, by_row, jnp.zeros((), self.dtype))
    return jnp.moveaxis(matrix, (-2, -1), (dim1, dim2))
