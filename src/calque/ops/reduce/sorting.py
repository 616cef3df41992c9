"""Sorting: sort, topk, and searches in sorted sequences.

PyTorch and XLA's sort order NaN above every number. XLA's top-k is used where it does so too.
"""

import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.ops.table.helpers import is_below, wrap_dim
from calque.ops.table.promotion import RefusedDtype, is_complex, is_float, type_name
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import TensorArgument


def _iota(shape: tuple[int, ...], dim: int) -> Array:
    dtype = jnp.int32 if is_below(shape[dim], 2**31) else jnp.int64
    return lax.broadcasted_iota(dtype, shape, dim)


def sort_with_positions(array: Array, dim: int, descending: bool) -> tuple[Array, Array]:
    """Returns a stable sort and the position of each element (int32 or int64)."""
    where = _iota(array.shape, dim)
    if not descending:
        values, places = lax.sort((array, where), dimension=dim, num_keys=1, is_stable=True)
        return values, places
    # Reversing before and after keeps the order of equal elements, and puts NaN first.
    array, where = jnp.flip(array, dim), jnp.flip(where, dim)
    values, places = lax.sort((array, where), dimension=dim, num_keys=1, is_stable=True)
    return jnp.flip(values, dim), jnp.flip(places, dim)


@op("sort", layout="meta_if_strided", writes=("exact_dtype",))
def sort(self: Array, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    if is_complex(self.dtype):
        raise RefusedDtype("Sort currently does not support complex dtypes on CPU")
    dim = wrap_dim(dim, self.ndim)
    if self.ndim == 0 or self.size == 0:
        return self, jnp.zeros(self.shape, jnp.int64)
    values, places = sort_with_positions(self, dim, descending)
    return values, places.astype(jnp.int64)


@op("sort.stable", layout="meta_if_strided", writes=("exact_dtype",))
def sort_stable(
    self: Array, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Array, Array]:
    return sort(self, dim, descending)


@op("topk", writes=("exact_dtype",))
def topk(
    self: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Array, Array]:
    dim = wrap_dim(dim, self.ndim)
    if not 0 <= k <= (self.shape[dim] if self.ndim else 1):
        raise RuntimeError("selected index k out of range")
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    if self.size == 0 or k == 0:
        shape = (*self.shape[:dim], k, *self.shape[dim + 1 :])
        return jnp.zeros(shape, self.dtype), jnp.zeros(shape, jnp.int64)
    # XLA's top-k ignores NaN in 16-bit floats, and optimizes a conversion to float32 away.
    exact = self.dtype not in (jnp.bool_, jnp.bfloat16, jnp.float16)
    if largest and dim == self.ndim - 1 and exact:
        # It orders negative NaN, such as x86's 0 / 0, below all numbers.
        keys = jnp.where(self != self, jnp.nan, self) if is_float(self.dtype) else self
        values, places = lax.top_k(keys, k)
        return values, places.astype(jnp.int64)
    values, places = sort_with_positions(self, dim, largest)
    values = lax.slice_in_dim(values, 0, k, axis=dim)
    return values, lax.slice_in_dim(places, 0, k, axis=dim).astype(jnp.int64)


# Searches -----------------------------------------------------------------------------------------


def _search(boundaries: Array, values: Array, right: bool, narrow: bool) -> Array:
    """Returns where PyTorch's binary search ends, also in a row with NaN or out of order."""
    common = jnp.promote_types(boundaries.dtype, values.dtype)
    boundaries, values = boundaries.astype(common), values.astype(common)
    passes = operator.gt if right else operator.ge

    def one(row: Array, sought: Array) -> Array:
        def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            start, end = ends
            middle = start + (end - start) // 2
            stays = passes(row[jnp.minimum(middle, row.size - 1)], sought)
            searching = start < end
            return (
                jnp.where(searching & ~stays, middle + 1, start),
                jnp.where(searching & stays, middle, end),
            )

        ends = (jnp.zeros(sought.shape, jnp.int64), jnp.full(sought.shape, row.size, jnp.int64))
        return lax.fori_loop(0, row.size.bit_length(), halve, ends)[0]

    if not boundaries.size:
        found = jnp.zeros(values.shape, jnp.int64)
    elif boundaries.ndim == 1:
        found = one(boundaries, values)
    else:
        count = math.prod(boundaries.shape[:-1])
        rows = boundaries.reshape(count, boundaries.shape[-1])
        found = jax.vmap(one)(rows, values.reshape(count, values.shape[-1])).reshape(values.shape)
    return found.astype(jnp.int32 if narrow else jnp.int64)


def _sorter_condition(
    sorted_sequence: Any,
    self: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> None:
    if sorter is None:
        return
    if sorter.shape != sorted_sequence.shape:
        raise RuntimeError(
            "torch.searchsorted(): boundary and sorter must have the same size, but got boundary "
            f"tensor {list(sorted_sequence.shape)} and got sorter tensor {list(sorter.shape)}"
        )
    if sorter.dtype != np.int64:
        raise RuntimeError(
            "torch.searchsorted(): sorter must be a tensor of long dtype but got dtype "
            f"{type_name(sorter.dtype)}"
        )


def _sorter_within(
    sorted_sequence: TensorArgument, sorter: TensorArgument | None = None, **_: Any
) -> None:
    if sorter is not None and sorter.ndim:
        sorter.require_within(
            0,
            sorted_sequence.shape[-1],
            lambda _: RuntimeError("torch.searchsorted(): sorter index out of range"),
        )


@op(
    "searchsorted.Tensor",
    "searchsorted.Scalar",
    writes=("exact_dtype",),
    condition=_sorter_condition,
    values=_sorter_within,
)
def searchsorted(
    sorted_sequence: Array,
    self: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Array:
    if side is not None and side not in ("left", "right"):
        raise RuntimeError(
            f"torch.searchsorted(): side can only be 'left' or 'right' but got {side}"
        )
    if right and side == "left":
        raise RuntimeError(
            "torch.searchsorted(): side and right can't be set to opposites, got side of left "
            "while right was True"
        )
    values = _like_boundaries(self, sorted_sequence)
    if sorted_sequence.ndim > 1 and sorted_sequence.shape[:-1] != values.shape[:-1]:
        raise RuntimeError(
            "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 "
            "dimensions of boundaries tensor and input value tensor must match, but we got "
            f"boundaries tensor {list(sorted_sequence.shape)} and input value tensor "
            f"{list(values.shape)}"
        )
    if sorter is not None:
        sorted_sequence = jnp.take_along_axis(sorted_sequence, sorter, axis=-1)
    return _search(sorted_sequence, values, right or side == "right", out_int32)


def _like_boundaries(value: Any, boundaries: Array) -> Array:
    """Returns a Python number as an array of the boundaries' dtype, unless that would round it."""
    if hasattr(value, "dtype") and not getattr(value, "weak_type", False):
        return value
    array = jnp.asarray(value)
    whole = jnp.issubdtype(boundaries.dtype, jnp.integer)
    if whole and jnp.issubdtype(array.dtype, jnp.floating):
        return array
    return array.astype(boundaries.dtype)


@op("bucketize.Tensor", "bucketize.Scalar", writes=("exact_dtype", "computes_first"))
def bucketize(self: Any, boundaries: Array, out_int32: bool = False, right: bool = False) -> Array:
    if boundaries.ndim != 1:
        raise RuntimeError(
            f"torch.bucketize(): boundaries tensor must be 1 dimension, but got "
            f"dim({boundaries.ndim})"
        )
    return _search(boundaries, _like_boundaries(self, boundaries), right, out_int32)


def _check_isin(*operands: Any) -> None:
    for each in operands:
        dtype = jnp.asarray(each).dtype
        if dtype == jnp.bool_ or is_complex(dtype):
            raise RefusedDtype(f"Unsupported input type encountered for isin(): {type_name(dtype)}")


@op("isin.Tensor_Tensor", writes=("exact_dtype",))
def isin(
    elements: Array, test_elements: Array, assume_unique: bool = False, invert: bool = False
) -> Array:
    _check_isin(elements, test_elements)
    return jnp.isin(elements, test_elements, invert=invert)


@op("isin.Tensor_Scalar", writes=("exact_dtype",))
def isin_scalar(
    elements: Array, test_element: Any, assume_unique: bool = False, invert: bool = False
) -> Array:
    _check_isin(elements, test_element)
    return (elements != test_element) if invert else (elements == test_element)


@op("isin.Scalar_Tensor", writes=("exact_dtype",))
def scalar_isin(
    element: Any, test_elements: Array, assume_unique: bool = False, invert: bool = False
) -> Array:
    _check_isin(element, test_elements)
    found = jnp.any(test_elements == element)
    return ~found if invert else found
