"""Creates tensors over arrays, and views of existing tensors."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import torch
from jax import Array

from calque.device.memory import geometry
from calque.device.memory.cell import Cell, active, cell_of, view_of, write, x64
from calque.device.memory.geometry import View
from calque.device.runtime import sizes
from calque.device.runtime.dtypes import TO_TORCH, to_torch
from calque.device.runtime.placement import note, spread
from calque.upstream import torch_c
from calque.upstream.torch_internals import OpOverload

_create = torch_c.acc.create_empty_tensor
_set = torch.ops.aten.set_.source_Storage_storage_offset
META = torch_c.DispatchKeySet(torch_c.DispatchKey.Meta)


def wrap(array: Array) -> torch.Tensor:
    """Returns a new row-major tensor of the device over an array."""
    tensor = wrap_untraced(array)
    if active.trace is not None:
        storage = tensor.untyped_storage()
        active.trace.created(storage.cell, storage)  # type: ignore[attr-defined]
    return tensor


def wrap_untraced(array: Array) -> torch.Tensor:
    """Like `wrap`, outside traces."""
    aval = array.aval  # `array.shape` is a Python property
    dtype, shape = aval.dtype, aval.shape
    if not spread.exists:
        note(array)
    if 0 in shape:
        sizes.check_strides(shape)
    tensor = _create(shape, TO_TORCH.get(dtype) or to_torch(dtype))
    tensor.untyped_storage().cell = Cell(array)  # type: ignore[attr-defined]
    if 0 in shape:
        set_geometry(tensor, View(shape, geometry.contiguous_strides(shape), 0))
    return tensor


def wrapper(
    shape: tuple[int, ...], stride: geometry.Ints, dtype: torch.dtype
) -> Callable[[Array], torch.Tensor]:
    """Returns a function that wraps arrays of one kind, outside traces.

    Args:
        shape, stride, dtype: those of the tensors. The arrays are like those of `wrap_strided`, or
            have their axes in memory order if there is one (`geometry.permutation`).
    """
    row_major = stride == geometry.contiguous_strides(shape)
    if 0 in shape or not (row_major or geometry.permutation(shape, stride)):
        return lambda array: wrap_strided(array, stride)

    def wrapped(array: Array) -> torch.Tensor:
        tensor = _create(shape, dtype)
        tensor.untyped_storage().cell = Cell(array)  # type: ignore[attr-defined]
        return tensor

    def permuted(array: Array) -> torch.Tensor:
        tensor = _create(shape, dtype)
        storage = tensor.untyped_storage()
        storage.cell = cell = Cell(array)  # type: ignore[attr-defined]
        cell.viewed = True
        _set.redispatch(META, tensor, storage, 0, shape, stride)
        return tensor

    return wrapped if row_major else permuted


def wrap_strided(array: Array, stride: geometry.Ints) -> torch.Tensor:
    """Returns a new tensor over an array, with the given strides."""
    stride = tuple(stride)
    row_major, dense = _kind(array.shape, stride)
    if row_major:
        return wrap(array)
    if not dense:
        return _wrap_sparse(array, stride)
    tensor = wrap(array)
    set_geometry(tensor, View(array.shape, stride, 0))
    if array.size:
        cell = cell_of(tensor)
        cell.stride = stride
        cell.viewed = True
    return tensor


def is_row_major(tensor: torch.Tensor) -> bool:
    """Returns True if a tensor has row-major strides.

    `is_contiguous` ignores the strides of axes of length 1, which distinguish `channels_last`
    images.
    """
    if not tensor.is_contiguous():
        return False
    shape = tensor.shape
    return 1 not in shape or tensor.stride() == geometry.contiguous_strides(shape)


def wrap_nested(array: Array, stride: geometry.Ints) -> torch.Tensor:
    """Like `wrap_strided`, over a storage without elements in the gaps between strides.

    Use it only if those are never read. Strides must be nested (`geometry.is_nested`).
    """
    tensor = wrap(array)
    cell = cell_of(tensor)
    cell.stride = tuple(stride)
    cell.viewed = True
    set_geometry(tensor, View(array.shape, cell.stride, 0))
    return tensor


@lru_cache(maxsize=4096)
def _kind(shape: geometry.Ints, stride: geometry.Ints) -> tuple[bool, bool]:
    """Returns whether strides are row-major, and whether they are dense."""
    return stride == geometry.contiguous_strides(shape), geometry.is_dense(shape, stride)


def _wrap_sparse(array: Array, stride: geometry.Ints) -> torch.Tensor:
    """Returns a new tensor whose strides have holes or overlap, as a view of a larger memory."""
    extent = 1 + sum((n - 1) * s for n, s in zip(array.shape, stride, strict=True))
    with x64():
        base = wrap(jnp.zeros((0 if 0 in array.shape else extent,), array.dtype))
    tensor = alias(torch.ops.aten.as_strided.default, base, array.shape, stride, 0)
    write(tensor, array)
    return tensor


def alias(op: OpOverload, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Run a view operator on the geometry of a tensor; the result shares its storage."""
    share(tensor)
    return op.redispatch(META, tensor, *args, **kwargs)


def share(tensor: torch.Tensor) -> Cell:
    """Prepare a tensor's storage for views, which PyTorch checks against its size in bytes."""
    cell = cell_of(tensor)
    if not cell.viewed:
        cell.viewed = True
        set_geometry(tensor, view_of(tensor))
    return cell


def set_geometry(tensor: torch.Tensor, view: View) -> None:
    """Give a tensor a geometry; the storage's size in bytes grows to hold it."""
    _set.redispatch(META, tensor, tensor.untyped_storage(), view.offset, view.size, view.stride)
