"""Writes to a view of a fresh copy (`*_scatter`), gradients of views, and views as copies.

Views themselves are geometry and never reach a rule; functionalized graphs and autograd use these
operators instead.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.core import max_dim, min_dim

from calque.ops.index.writes import accumulate_at
from calque.ops.table.facts import facts
from calque.ops.table.helpers import wrap_dim
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import TensorArgument

_NO_END = 2**63 - 1  # PyTorch's end for `x[1:]`

# The position of a view in its base ---------------------------------------------------------------


def slice_bounds(size: int, start: int | None, end: int | None, step: int) -> tuple[int, int]:
    """Returns the start and end of PyTorch's slice, counted from the front and clamped to the
    axis."""
    if step <= 0:
        raise RuntimeError("slice step must be positive")
    first = 0 if start is None else start
    last = size if end is None or (isinstance(end, int) and end >= _NO_END) else end
    first = min_dim(max_dim(first + size if first < 0 else first, 0), size)
    last = min_dim(max_dim(last + size if last < 0 else last, first), size)
    return first, last


def _slice_key(shape: Any, dim: int, start: Any, end: Any, step: int) -> tuple[Any, ...]:
    dim = wrap_dim(dim, len(shape))
    first, last = slice_bounds(shape[dim], start, end, step)
    return (*(slice(None),) * dim, slice(first, last, step))


def _diagonal_key(shape: Any, offset: int, dim1: int, dim2: int) -> tuple[Any, ...]:
    """Returns the indices of a diagonal in an array whose last dimensions are `dim1` and `dim2`."""
    rows, columns = shape[dim1], shape[dim2]
    count = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    steps = jnp.arange(count, dtype=jnp.int32)
    return (..., steps - min(offset, 0), steps + max(offset, 0))


def _strided_index(size: Any, stride: Any, offset: int) -> Array:
    index = jnp.asarray(offset, jnp.int32)
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        shape = [count if a == axis else 1 for a in range(len(size))]
        index = index + (jnp.arange(count, dtype=jnp.int32) * step).reshape(shape)
    return index


def _select_key(shape: Any, dim: int, index: Any) -> tuple[int, Any]:
    dim = wrap_dim(dim, len(shape))
    if isinstance(index, int) and not -shape[dim] <= index < shape[dim]:
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(shape)} at dimension "
            f"{dim}"
        )
    where = jnp.asarray(index, jnp.int32)
    return dim, jnp.where(where < 0, where + shape[dim], where)


# Writes into a copy -------------------------------------------------------------------------------


def _check_source(name: str, src: Array, shape: tuple[int, ...]) -> None:
    if src.shape != shape:
        raise RuntimeError(
            f"expected src to have a size equal to the slice of self. src size = "
            f"{list(src.shape)}, slice size = {list(shape)}"
        )


def _in_range(self: TensorArgument, dim: int, index: Any, **_: Any) -> None:
    if -self.ndim <= dim < self.ndim and isinstance(index, int):
        size = self.shape[dim]
        if not -size <= index < size:
            raise IndexError(
                f"select(): index {index} out of range for tensor of size {list(self.shape)} at "
                f"dimension {dim}"
            )


@op("select_scatter", dynamic=("index",), layout="meta_if_strided", numbers=_in_range)
def select_scatter(self: Array, src: Array, dim: int, index: Any) -> Array:
    dim, where = _select_key(self.shape, dim, index)
    _check_source("select_scatter", src, (*self.shape[:dim], *self.shape[dim + 1 :]))
    return lax.dynamic_update_index_in_dim(self, src.astype(self.dtype), where, dim)


@op("slice_scatter", layout="meta_if_strided", writes=("computes_first",))
def slice_scatter(
    self: Array, src: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Array:
    key = _slice_key(self.shape, dim, start, end, step)
    view = jax.eval_shape(lambda x: x[key], self)
    _check_source("slice_scatter", src, view.shape)
    return _write(self, key, src)


def _write(base: Array, key: tuple[Any, ...], src: Array) -> Array:
    """Writes a slice: by a dynamic update, or by a scatter if the slice has a step."""
    dim = len(key) - 1
    src = src.astype(base.dtype)
    if 0 in src.shape:
        return base
    if key[-1].step == 1:
        return lax.dynamic_update_slice_in_dim(
            base, src, jnp.asarray(key[-1].start, jnp.int32), dim
        )
    return base.at[key].set(src)


@op("diagonal_scatter", layout="meta_if_strided")
def diagonal_scatter(
    self: Array, src: Array, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Array:
    dim1, dim2 = wrap_dim(dim1, self.ndim), wrap_dim(dim2, self.ndim)
    last = jnp.moveaxis(self, (dim1, dim2), (-2, -1))
    key = _diagonal_key(self.shape, offset, dim1, dim2)
    _check_source("diagonal_scatter", src, (*last.shape[:-2], key[1].shape[0]))
    return jnp.moveaxis(last.at[key].set(src.astype(self.dtype)), (-2, -1), (dim1, dim2))


@op("as_strided_scatter", layout="meta_if_strided")
def as_strided_scatter(
    self: Array, src: Array, size: Any, stride: Any, storage_offset: int | None = None
) -> Array:
    index = _strided_index(size, stride, storage_offset or 0)
    flat = self.reshape(-1).at[index].set(src.astype(self.dtype))
    return flat.reshape(self.shape)


# Gradients of views -------------------------------------------------------------------------------


@op("select_backward", dynamic=("index",))
def select_backward(grad_output: Array, input_sizes: Any, dim: int, index: Any) -> Array:
    zeros = jnp.zeros(tuple(input_sizes), grad_output.dtype)
    dim, where = _select_key(zeros.shape, dim, index)
    return lax.dynamic_update_index_in_dim(zeros, grad_output, where, dim)


@op("slice_backward", dynamic=("start", "end"))
def slice_backward(
    grad_output: Array, input_sizes: Any, dim: int, start: Any, end: Any, step: int
) -> Array:
    zeros = jnp.zeros(tuple(input_sizes), grad_output.dtype)
    dim = wrap_dim(dim, zeros.ndim)
    if grad_output.shape[dim] == 0:
        return zeros
    if step > 1:
        gaps = [(0, 0, step - 1 if d == dim else 0) for d in range(zeros.ndim)]
        grad_output = lax.pad(grad_output, jnp.zeros((), grad_output.dtype), gaps)
    first = jnp.asarray(start, jnp.int32)
    first = jnp.where(first < 0, first + zeros.shape[dim], first)
    return lax.dynamic_update_slice_in_dim(zeros, grad_output, jnp.maximum(first, 0), dim)


@op("diagonal_backward")
def diagonal_backward(
    grad_output: Array, input_sizes: Any, offset: int, dim1: int, dim2: int
) -> Array:
    zeros = jnp.zeros(tuple(input_sizes), grad_output.dtype)
    return diagonal_scatter(zeros, grad_output, offset, dim1, dim2)


@op("unfold_backward")
def unfold_backward(grad_in: Array, input_sizes: Any, dim: int, size: int, step: int) -> Array:
    shape = tuple(input_sizes)
    if not shape:
        return grad_in.reshape(())
    dim = wrap_dim(dim, len(shape))
    count = grad_in.shape[dim]
    starts = jnp.arange(count, dtype=jnp.int32)[:, None] * step
    where = starts + jnp.arange(size, dtype=jnp.int32)
    windows = jnp.moveaxis(grad_in, -1, dim + 1)
    zeros = jnp.zeros(shape, grad_in.dtype)
    return accumulate_at(zeros, (*(slice(None),) * dim, where), windows, "add")


# Views as copies ----------------------------------------------------------------------------------


def _expand(self: Array, size: Any, implicit: bool = False) -> Array:
    lead = len(size) - self.ndim
    if lead < 0:
        raise RuntimeError(
            f"expand: the number of sizes provided ({len(size)}) must be greater or equal to the "
            f"number of dimensions in the tensor ({self.ndim})"
        )
    shape = [self.shape[d - lead] if n == -1 and d >= lead else n for d, n in enumerate(size)]
    return jnp.broadcast_to(self, shape)


def _squeeze(self: Array, dim: Any = None) -> Array:
    if dim is None:
        return jnp.squeeze(self)
    dims = (dim,) if isinstance(dim, int) else dim
    wrapped = {wrap_dim(d, self.ndim) for d in dims}
    return jnp.squeeze(self, tuple(d for d in wrapped if self.ndim and self.shape[d] == 1))


def _slice(self: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    return self[_slice_key(self.shape, dim, start, end, step)]


def _select(self: Array, dim: int, index: Any) -> Array:
    dim, where = _select_key(self.shape, dim, index)
    return lax.dynamic_index_in_dim(self, where, dim, keepdims=False)


def _split_sizes(self: Array, split_sizes: Any, dim: int = 0) -> list[Array]:
    ends = [sum(split_sizes[: i + 1]) for i in range(len(split_sizes))]
    axis = wrap_dim(dim, self.ndim)
    if (ends[-1] if ends else 0) != self.shape[axis]:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {self.shape[axis]} (input "
            f"tensor's size at dimension {axis}), but got split_sizes={list(split_sizes)}"
        )
    return [
        lax.slice_in_dim(self, end - n, end, axis=axis)
        for n, end in zip(split_sizes, ends, strict=True)
    ]


def _split(self: Array, split_size: int, dim: int = 0) -> list[Array]:
    size = self.shape[wrap_dim(dim, self.ndim)]
    if split_size == 0 or size == 0:
        return [self]
    whole, rest = divmod(size, split_size)
    return _split_sizes(self, [split_size] * whole + ([rest] if rest else []), dim)


def _unbind(self: Array, dim: int = 0) -> list[Array]:
    axis = wrap_dim(dim, self.ndim)
    return [lax.index_in_dim(self, i, axis, keepdims=False) for i in range(self.shape[axis])]


def _unfold(self: Array, dimension: int, size: int, step: int) -> Array:
    dim = wrap_dim(dimension, self.ndim)
    base = self if self.ndim else self.reshape(1)
    starts = jnp.arange(0, base.shape[dim] - size + 1, step, dtype=jnp.int32)[:, None]
    where = starts + jnp.arange(size, dtype=jnp.int32)
    windows = jnp.moveaxis(jnp.take(base, where, axis=dim, mode="clip"), dim + 1, -1)
    return windows if self.ndim else windows.reshape(size)


def _reshape(self: Array, size: Any) -> Array:
    return self.reshape(tuple(size))


def _real_pairs(self: Array) -> Array:
    return jnp.stack([self.real, self.imag], axis=-1)


def _complex_of_pairs(self: Array) -> Array:
    return lax.complex(self[..., 0], self[..., 1])


def _permute(self: Array, dims: Any) -> Array:
    return jnp.transpose(self, [wrap_dim(d, self.ndim) for d in dims])


def _transpose(self: Array, dim0: int, dim1: int) -> Array:
    axes = wrap_dim(dim0, self.ndim), wrap_dim(dim1, self.ndim)
    return jnp.swapaxes(self, *axes) if self.ndim else self


def _unsqueeze(self: Array, dim: int) -> Array:
    return jnp.expand_dims(self, wrap_dim(dim, self.ndim + 1))


def _narrow(self: Array, dim: int, start: int, length: int) -> Array:
    axis = wrap_dim(dim, self.ndim)
    first = start + self.shape[axis] if start < 0 else start
    if first + length > self.shape[axis] or length < 0:
        raise RuntimeError(
            f"start ({start}) + length ({length}) exceeds dimension size ({self.shape[axis]})."
        )
    return lax.slice_in_dim(self, first, first + length, axis=axis)


def _diagonal(self: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    dim1, dim2 = wrap_dim(dim1, self.ndim), wrap_dim(dim2, self.ndim)
    return jnp.diagonal(self, offset, dim1, dim2)


def _as_strided(self: Array, size: Any, stride: Any, storage_offset: int | None = None) -> Array:
    if math.prod(size) == 0:
        return jnp.zeros(tuple(size), self.dtype)
    return self.reshape(-1)[_strided_index(size, stride, storage_offset or 0)]


def _t(self: Array) -> Array:
    return self.T


def _same(self: Array) -> Array:
    return self


_COPIES = {
    "alias_copy": _same,
    "detach_copy": _same,
    "lift_fresh_copy": _same,
    "diagonal_copy": _diagonal,
    "expand_copy": _expand,
    "narrow_copy": _narrow,
    "permute_copy": _permute,
    "_reshape_copy": _reshape,
    "slice_copy.Tensor": _slice,
    "split_copy.Tensor": _split,
    "split_with_sizes_copy": _split_sizes,
    "squeeze_copy": _squeeze,
    "squeeze_copy.dim": _squeeze,
    "squeeze_copy.dims": _squeeze,
    "t_copy": _t,
    "transpose_copy.int": _transpose,
    "unbind_copy.int": _unbind,
    "unfold_copy": _unfold,
    "unsqueeze_copy": _unsqueeze,
    "view_as_complex_copy": _complex_of_pairs,
    "view_as_real_copy": _real_pairs,
    "view_copy": _reshape,
}
for _name, _function in _COPIES.items():
    op(_name)(_function)
op("select_copy.int", dynamic=("index",), numbers=_in_range)(_select)


def _t_condition(self: Any) -> None:
    if self.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {self.ndim}D")


facts("t_copy", condition=_t_condition)


def _narrow_condition(self: Any, dim: int, start: int, length: int) -> None:
    if dim >= max(self.ndim, 1):
        raise RuntimeError(f"narrow_copy: expected dim < {self.ndim}, but got {dim}")
    size = self.shape[wrap_dim(dim, self.ndim)] if self.ndim else 0
    if self.ndim and not -size <= start <= size:
        raise IndexError(
            f"start out of range (expected to be in range of [-{size}, {size}], but got {start})"
        )


facts("narrow_copy", condition=_narrow_condition)
