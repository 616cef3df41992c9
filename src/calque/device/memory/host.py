"""CPU tensors among the arguments of the device's operators."""

from functools import cache
from typing import Any

import jax
import numpy as np
import torch
from jax import Array
from jax.sharding import SingleDeviceSharding
from torch import Tensor

from calque.device.memory.cell import active, cell_of, read, x64
from calque.device.runtime import sizes
from calque.device.runtime.addressable import on_host
from calque.device.runtime.dtypes import TO_NUMPY, to_numpy, to_torch
from calque.upstream.jax_internals import xla_client

CARRIERS = {
    dtype: torch.uint8 if dtype.itemsize == 1 else torch.uint16
    for dtype, numpy in TO_NUMPY.items()
    if numpy.isbuiltin != 1
}
_SMALL = 4096  # bytes
_empty = torch.empty  # a trace may replace the attribute


def array_of(tensor: Tensor) -> Array:
    """Returns the array of a tensor argument; like PyTorch for CUDA, accepts 0-d CPU tensors.

    Raises:
        RuntimeError: the tensor is on another device.
    """
    if tensor.device.type == "jax":
        return read(tensor)
    if tensor.device.type == "cpu" and tensor.ndim == 0:
        return host_array(tensor)
    cell_of(tensor)
    raise AssertionError("unreachable")


def host_array(tensor: Tensor) -> Array:
    """Returns a CPU tensor's value as an array; in a trace, as an input that is read at every
    call.
    """
    trace = active.trace
    if trace is not None:
        return trace.constant(tensor)
    if tensor.ndim > 64:  # NumPy's limit
        with x64():
            return host_array(tensor.reshape(-1)).reshape(tensor.shape)
    with sizes.translated():
        return copied(host_values(tensor))


def copied(values: np.ndarray) -> Array:
    """Returns a copy of host values on JAX's default device.

    `jax.numpy.array` would compile a program for each shape.
    """
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    if device is not None:
        with x64():
            return jax.numpy.array(values, copy=True)
    sharding, devices = _default_place()
    during_call = xla_client.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
    aval = jax.core.ShapedArray(values.shape, values.dtype)
    return xla_client.batched_device_put(
        aval, sharding, [values], devices, False, True, during_call, enable_x64=True
    )


@cache
def _default_place() -> tuple[Any, list[Any]]:
    device = jax.local_devices()[0]
    return SingleDeviceSharding(device), [device]


def host_view(tensor: Tensor) -> np.ndarray:
    """Returns a CPU tensor's memory as a NumPy array, including bfloat16 and fp8.

    It uses DLPack, because after `tensor.numpy()` PyTorch could never resize the tensor.
    """
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain._is_zerotensor():  # forward-mode autograd's zeros have no memory
        plain = plain.clone()
    carrier = CARRIERS.get(plain.dtype)
    dtype = to_numpy(plain.dtype)
    if carrier is None:
        return np.from_dlpack(plain)
    return np.from_dlpack(plain.view(carrier)).view(dtype)


def host_values(tensor: Tensor) -> np.ndarray:
    """Like `host_view`, to read only: the bytes of booleans are 0 and 1, as XLA assumes.

    To PyTorch any other byte is True as well, and `tensor.view(torch.bool)` checks none.
    """
    values = host_view(tensor)
    return values if values.dtype != np.bool_ else values.view(np.uint8) != 0


def host_tensor(array: Any) -> Tensor:
    """Returns the elements of an array as a CPU tensor with its own memory.

    The memory is PyTorch's, so it can be resized, and has the alignment that some PyTorch kernels
    assume.
    """
    if array.ndim > 64:  # NumPy's limit
        return host_tensor(array.reshape(-1)).reshape(array.shape)
    with sizes.translated():
        values = on_host(array)
        if values.nbytes <= _SMALL:  # two copies are faster than DLPack
            return _of_numpy(np.array(values, copy=True, order="C")).clone()
        result = _empty(values.shape, dtype=to_torch(values.dtype), device="cpu")
        np.copyto(host_view(result), values)
    return result


def _of_numpy(values: np.ndarray) -> Tensor:
    """Returns a CPU tensor over the memory of a numpy array."""
    dtype = to_torch(values.dtype)
    carrier = CARRIERS.get(dtype)
    if carrier is None:
        return torch.from_numpy(values)
    return torch.from_numpy(values.view(to_numpy(carrier))).view(dtype)


def check_device(device: torch.device | None) -> None:
    """Raise RuntimeError for a device index other than 0."""
    if device is not None and device.index:
        raise RuntimeError(
            f"there is no device {device}: the jax device has only index 0 (use a mesh to spread "
            "arrays over several of JAX's devices)"
        )
