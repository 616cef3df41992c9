"""Converts between CPU tensors and arrays, sharing memory if possible.

On accelerators it is not: there, the arrays are copies on JAX's default device.
JAX's and PyTorch's own functions for DLPack check every argument, which takes longer than running a
small program. If the device is the CPU, the capsules are passed directly.
"""

import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import torch
from jax import Array

from calque.device.memory.cell import x64
from calque.device.memory.geometry import Ints
from calque.device.memory.host import host_array, host_tensor
from calque.device.runtime.dtypes import TO_NUMPY
from calque.device.runtime.placement import host_has_default_device
from calque.upstream import torch_c
from calque.upstream.jax_internals import extension

_ALIGNMENT = 64
_CPU = 1  # in DLPack


def array_over(tensor: torch.Tensor) -> Array:
    """Returns a CPU tensor's array, without a copy if its memory can be shared."""
    tensor = tensor.detach()
    shareable = (
        host_has_default_device()
        and tensor.is_contiguous()
        and tensor.numel()
        and torch_c.data_ptr(tensor) % _ALIGNMENT == 0
        and not (tensor.is_conj() or tensor.is_neg())
        and tensor.dtype != torch.bool
    )
    if not shareable:
        return host_array(tensor)
    device = _direct()
    if device is not None:
        capsule = torch_c.to_dlpack(tensor)
        return extension.dlpack_managed_tensor_to_buffer(capsule, device, None, None, _CPU)
    with x64():
        return jax.dlpack.from_dlpack(tensor)


def tensor_over(array: Array) -> torch.Tensor:
    """Returns an array as a CPU tensor; the array must not be used afterwards.

    It is over the same memory, unless the array is on an accelerator or on several devices.
    """
    if _direct() is None:
        if not host_has_default_device() or array.sharding.num_devices > 1:
            return host_tensor(array)
        return torch.from_dlpack(array)
    return torch_c.from_dlpack(extension.buffer_to_dlpack_managed_tensor(array, stream=None))


class _Result(weakref.ref):
    """A storage that is the memory of an array, which a program has returned.

    The array does not keep the storage alive.
    """

    __slots__ = ("array", "storage_id")
    array: Array
    storage_id: int


_results: dict[int, _Result] = {}
"""By the storage's `id`, as long as it lives: gradients and saved activations."""


def remember(tensor: torch.Tensor, array: Array) -> None:
    """Let `result_over` find an array of which a CPU tensor has the memory."""
    if not host_has_default_device():
        return  # it is a copy
    if tensor.dtype == torch.bool:
        return  # other code may write bytes to its memory that are neither 0 nor 1
    memory = torch_c.untyped_storage(tensor)
    result = _Result(memory, _forget)
    result.array, result.storage_id = array, id(memory)
    _results[result.storage_id] = result


def _forget(result: _Result) -> None:
    if _results.get(result.storage_id) is result:
        del _results[result.storage_id]


def result_over(tensor: torch.Tensor) -> Array | None:
    """Returns the array of a program whose memory and geometry a CPU tensor has, or None.

    An array over shared memory has the memory's values when a program runs.
    """
    memory = torch_c.untyped_storage(tensor)
    result = _results.get(id(memory))
    if result is None or result() is not memory:
        return None
    array = result.array
    is_same = (
        array.unsafe_buffer_pointer() == torch_c.data_ptr(tensor)
        and array.shape == tensor.shape
        and array.dtype is TO_NUMPY[tensor.dtype]
        and tensor.is_contiguous()
        and not (tensor.is_neg() or tensor.is_conj())
    )
    return array if is_same else None


def restrided(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """Returns a copy of a CPU tensor with other strides, which may repeat elements."""
    copy = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device="cpu")
    once = [n if step else min(n, 1) for n, step in zip(tensor.shape, stride, strict=True)]
    copy.as_strided(once, stride).copy_(tensor.as_strided(once, tensor.stride()))
    return copy


@cache
def _direct() -> Any:
    """Returns JAX's device if capsules can be passed directly, otherwise None."""
    device = jax.devices()[0]
    if not host_has_default_device() or jax.device_count() != 1:
        return None
    memory = torch.zeros(_ALIGNMENT, device="cpu")
    try:
        capsule = torch_c.to_dlpack(memory)
        array = extension.dlpack_managed_tensor_to_buffer(capsule, device, None, None, _CPU)
        back = torch_c.from_dlpack(extension.buffer_to_dlpack_managed_tensor(array, stream=None))
    except (AttributeError, TypeError):  # JAX or PyTorch releases with different internals
        return None
    return device if isinstance(array, Array) and torch.equal(back, memory) else None


class KeptArray:
    """The array over the memory of the tensor that one input of a program had in its last call.

    It is kept as long as the tensor lives and uses this memory: at once for a parameter, and for
    other tensors at the second call in a row, because `torch.utils.swap_tensors` refuses tensors
    with weak references. An array over shared memory has the memory's values when a program runs.

    Args:
        index: the index of the input.
        order: the order of the array's axes, if it differs from the tensor's.
    """

    __slots__ = ("_array", "_index", "_last", "_of", "_order", "_pointer", "_stride")

    def __init__(self, index: int, order: Ints | None = None) -> None:
        self._index, self._order = index, order
        self._of: Any = None
        self._array: Array | None = None
        self._last = self._pointer = 0
        self._stride: Ints = ()

    def __call__(self, inputs: Sequence[Any]) -> Array:
        """Returns the array of a CPU tensor, whose shape and dtype are the input's."""
        tensor = inputs[self._index]
        array = self._array
        if (
            array is not None
            and self._of() is tensor
            and torch_c.data_ptr(tensor) == self._pointer
            and tensor.stride() == self._stride
        ):
            return array
        return self._found(tensor)

    def _found(self, tensor: torch.Tensor) -> Array:
        ordered = tensor if self._order is None else tensor.permute(self._order)
        array = result_over(ordered)
        if array is None:
            array, pointer = array_over(ordered), torch_c.data_ptr(tensor)
            last, self._last = self._last, id(tensor)
            is_again = last == self._last or type(tensor) is torch.nn.Parameter
            if is_again and _address(array) == pointer:
                self._array, self._pointer, self._stride = array, pointer, tensor.stride()
                self._of = weakref.ref(tensor, self._drop)
        return array

    def _drop(self, of: object) -> None:
        if of is self._of:
            self._array = None


def _address(array: Array) -> int:
    return array.unsafe_buffer_pointer() if array.size else 0
