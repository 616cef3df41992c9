"""Pads the arguments of a program, and extracts the valid part of its results.

Results that the next program of the same bucket reads stay padded: a tensor whose memory has the
layout of the padded array is passed directly, because the padding may have any values.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import jax.numpy as jnp
import torch
from jax import Array

from calque.device.memory.cell import cell_of, read, x64
from calque.device.memory.geometry import contiguous_strides
from calque.device.memory.host import host_tensor
from calque.device.memory.wrapping import wrap_strided, wrap_untraced
from calque.device.runtime.dtypes import to_numpy
from calque.device.runtime.placement import host_has_default_device
from calque.dynamo.buckets.padding.padded import Layout, Sizes
from calque.program.shared_memory import array_over, restrided
from calque.upstream.jax_internals import is_symbolic_dim

Tensor = torch.Tensor
Parts = tuple[tuple[int, ...], tuple[int, ...]]
"""The padded and true sizes of the axes that were joined to form the axes of an array."""


def parts_of(
    layouts: Sequence[Layout], shape: Sequence[Any], sizes: Sizes, env: Mapping[str, int]
) -> Parts:
    """Returns the parts of an array."""
    padded: list[int] = []
    true: list[int] = []
    for layout, size in zip(layouts, shape, strict=True):
        for part in layout or (size,):
            padded.append(sizes.padded(part))
            true.append(int(part._evaluate(env)) if is_symbolic_dim(part) else part)
    return tuple(padded), tuple(true)


class Padding:
    """Converts an argument to the padded array that a program takes.

    Args:
        layout: the layout of the axes.
        shape: the shape, with symbols.
        sizes: the padded sizes of the symbols.
    """

    def __init__(self, layout: Sequence[Layout], shape: Sequence[Any], sizes: Sizes) -> None:
        self._layout, self._shape, self._sizes = layout, shape, sizes
        self._held = tuple(map(sizes.padded, shape))
        self._strides = contiguous_strides(self._held)
        self._single = all(len(axis or ()) < 2 for axis in layout)

    def __call__(self, tensor: Tensor, env: Mapping[str, int]) -> Array:
        """Returns the padded array of a tensor, given the true sizes."""
        tensor = tensor.detach()
        on_host = tensor.device.type == "cpu"
        if self._single and tuple(tensor.stride()) == self._strides:
            found = _whole(tensor, self._held, on_host)
            if found is not None:
                return found
        padded, true = parts_of(self._layout, self._shape, self._sizes, env)
        if on_host or host_has_default_device():
            source = tensor if on_host else _as_host(read(tensor))
            room = torch.zeros(padded, dtype=source.dtype, device="cpu")
            room[tuple(map(slice, true))] = source.reshape(true)
            return array_over(room.view(self._held))
        with x64():
            widths = [(0, p - t) for p, t in zip(padded, true, strict=True)]
            return jnp.pad(read(tensor).reshape(true), widths).reshape(self._held)


def _whole(tensor: Tensor, held: tuple[int, ...], on_host: bool) -> Array | None:
    """Returns a tensor's memory as the padded array; None if it has another layout."""
    if tensor.storage_offset() or tensor.is_conj() or tensor.is_neg():
        return None
    if on_host:
        if tensor.untyped_storage().nbytes() < prod(held) * tensor.itemsize:
            return None
        return array_over(tensor.as_strided(held, tensor.stride(), 0))
    cell = cell_of(tensor)
    array = cell.array
    fits = cell.stride is None and array.shape == held and array.dtype == to_numpy(tensor.dtype)
    return array if fits else None


def _as_host(array: Array) -> Tensor:
    return torch.from_dlpack(array) if host_has_default_device() else host_tensor(array)


def taken(
    array: Array,
    parts: Parts,
    shape: Sequence[int],
    stride: Sequence[int],
    device: torch.device | None,
    own: bool,
) -> Tensor:
    """Returns the valid part of a result, as a tensor.

    Args:
        array: the padded result.
        parts: its parts.
        shape, stride: the tensor's shape and stride.
        device: the tensor's device.
        own: whether its memory must have exactly these strides and no padding.
    """
    padded, true = parts
    on_host = device is not None and device.type == "cpu"
    if not own and (len(padded) == array.ndim or padded[1:] == true[1:]):
        whole = _as_host(array) if on_host else wrap_untraced(array)
        return whole.as_strided(tuple(shape), contiguous_strides(array.shape), 0)
    cut = tuple(map(slice, true))
    stride = tuple(stride)
    if on_host or host_has_default_device():
        found = _as_host(array)
        if padded != true or found.stride() != stride:
            found = restrided(found.view(padded)[cut].reshape(shape), stride)
        if on_host:
            return found
        row_major = found.is_contiguous()
        array = array_over(found if row_major else found.contiguous())
        return wrap_untraced(array) if row_major else wrap_strided(array, stride)
    with x64():
        array = array.reshape(padded)[cut].reshape(tuple(shape))
    return wrap_strided(array, stride)
