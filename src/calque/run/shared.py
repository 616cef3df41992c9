"""Memory of CPU tensors as arrays: shared where it can be, copied where not."""

import weakref
from typing import Any

import jax
import torch
from jax import Array

from calque.device.cell import x64
from calque.device.host import host_array

_ALIGNMENT = 64


def array_over(tensor: torch.Tensor) -> Array:
    """A CPU tensor's array, without a copy where its memory can be shared."""
    tensor = tensor.detach()
    shareable = (
        tensor.is_contiguous()
        and tensor.numel()
        and tensor.data_ptr() % _ALIGNMENT == 0
        and not (tensor.is_conj() or tensor.is_neg())
        and tensor.dtype != torch.bool
    )
    if not shareable:
        return host_array(tensor)
    with x64():
        return jax.dlpack.from_dlpack(tensor)


class Kept:
    """The array over a parameter's memory, kept from call to call.

    An array over shared memory has the values that the memory has when a program runs. It is kept
    as long as the parameter lives and stands on that memory.
    """

    __slots__ = ("_array", "_of", "_pointer")

    def __init__(self) -> None:
        self._of: Any = None
        self._array: Array | None = None
        self._pointer = 0

    def __call__(self, tensor: torch.Tensor) -> Array:
        """The array of a CPU tensor."""
        pointer = tensor.data_ptr()
        array = self._array
        if array is not None and self._of() is tensor and pointer == self._pointer:
            return array
        array = array_over(tensor)
        if type(tensor) is torch.nn.Parameter and _address(array) == pointer:
            self._array, self._pointer = array, pointer
            self._of = weakref.ref(tensor, self._drop)
        return array

    def _drop(self, of: Any) -> None:
        if of is self._of:
            self._array = None


def _address(array: Array) -> int:
    return array.unsafe_buffer_pointer() if array.size else 0
