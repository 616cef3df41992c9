"""Conversions between tensors and `jax.Array`s, and DLPack.

A `jax.Array` never changes, but a tensor may. To share memory between both, pass `copy=False`, and
do not write to the tensor afterwards.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import Array
from torch.overrides import handle_torch_function, has_torch_function_unary

from calque.device.kernels.copies import to_host
from calque.device.memory.cell import read, x64
from calque.device.memory.host import host_array
from calque.device.memory.wrapping import wrap
from calque.device.runtime.dtypes import to_torch as torch_dtype


def to_jax(tensor: torch.Tensor, *, copy: bool = True) -> Array:
    """Converts a tensor to a `jax.Array` of the same shape and dtype.

    For a tensor on the device, this is the array in its storage, without a copy. Later writes to
    the tensor replace that array, so they do not change the result. The result is detached from
    PyTorch's autograd.

    Keep a reference to the result as long as you use arrays that share its memory
    (`addressable_data`, `jax.device_put` to the same device): a jitted step reuses the memory of an
    array without references.

    >>> import torch, calque
    >>> calque.to_jax(torch.arange(3, device="jax")).dtype
    dtype('int64')

    Args:
        tensor: a tensor on any device.
        copy: whether to copy a CPU tensor. With False, the array shares its memory, and the tensor
            must not be written to during the lifetime of the array.

    Raises:
        RuntimeError: `copy=False`, and the memory of the tensor cannot be shared.
        TypeError: `tensor` is not a tensor, or JAX has no such dtype.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"to_jax takes a torch.Tensor, not {type(tensor).__name__}: use jax.numpy.asarray "
            "for a number or list, jax.tree.map(calque.to_jax, tree) for a tree of tensors"
        )
    if has_torch_function_unary(tensor):  # for example the proxies of a trace
        return handle_torch_function(to_jax, (tensor,), tensor, copy=copy)
    if tensor.device.type == "jax":
        return read(tensor)
    plain = tensor.detach().resolve_conj().resolve_neg()
    if copy or plain.device.type != "cpu":
        return host_array(plain.cpu())
    if not plain.is_contiguous():
        raise RuntimeError("copy=False: a tensor with gaps in its memory cannot share it with JAX")
    with x64():
        array = jax.dlpack.from_dlpack(plain)
    if array.size and array.unsafe_buffer_pointer() != plain.data_ptr():
        raise RuntimeError("copy=False: the tensor's memory is not aligned as JAX requires")
    return array


def to_torch(
    array: Array, device: str | torch.device = "jax", *, copy: bool = True
) -> torch.Tensor:
    """Converts a `jax.Array` to a tensor of the same shape and dtype.

    On the device, the tensor's storage holds the array itself, without a copy. Writes to the tensor
    replace the storage's array, so they do not change the result.

    >>> import jax.numpy as jnp, calque
    >>> calque.to_torch(jnp.ones(2)) * 2
    tensor([2., 2.], device='jax:0')

    Args:
        array: an array, or a JAX tracer.
        device: "jax", "cpu" or any other PyTorch device.
        copy: whether a CPU tensor gets its own memory. With False, it shares the array's memory and
            must not be written to, because JAX assumes that arrays never change.

    Raises:
        TypeError: `array` is not a JAX array, or PyTorch has no such dtype.
        RuntimeError: `copy=False`, and the array is on an accelerator.
    """
    if not isinstance(array, Array):
        raise TypeError(
            f"to_torch takes a jax.Array, not {type(array).__name__}: use torch.as_tensor for a "
            "number, a list or a NumPy array"
        )
    torch_dtype(array.dtype)
    device = torch.device(device)
    if device.type == "jax":
        return wrap(_strong(array))
    if device.type == "cpu" and not copy:
        if any(device.platform != "cpu" for device in array.devices()):
            raise RuntimeError(f"copy=False: the array is in the memory of {array.devices()}")
        return torch.from_dlpack(array)
    return to_host(wrap(array)).to(device)


def _strong(array: Array) -> Array:
    """Returns an array that is not weakly typed, because JAX promotes weakly typed arrays like
    Python numbers.
    """
    if not getattr(array, "weak_type", False):
        return array
    with x64():
        return jax.lax.convert_element_type(array, array.dtype)


# DLPack -----------------------------------------------------------------------------------------


def _is_ours(tensor: object) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.device.type == "jax"
        and not has_torch_function_unary(tensor)
    )


def _exported(tensor: torch.Tensor) -> Array:
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj() or tensor.is_neg():
        raise BufferError("Can't export tensors with the conjugate or negative bit set")
    return to_jax(tensor)


def _dlpack(
    tensor: torch.Tensor,
    *,
    stream: object = -1,
    max_version: tuple[int, int] | None = None,
    dl_device: object = None,
    copy: bool | None = None,
) -> Any:
    """Returns a capsule of a copy, because consumers may write to it; with `copy=False`, of the
    array itself.
    """
    array = _exported(tensor)
    if copy is not False:
        with x64():
            array = jnp.array(array, copy=True)
    export: Any = array.__dlpack__
    stream = None if stream == -1 else stream
    return export(stream=stream, max_version=max_version, dl_device=dl_device)


def _dlpack_device(tensor: torch.Tensor) -> Any:
    return to_jax(tensor).__dlpack_device__()


def install() -> None:
    """Make the device's tensors support DLPack; tensors on other devices use PyTorch's
    implementation.
    """
    Tensor = torch.Tensor
    for name, ours in (("__dlpack__", _dlpack), ("__dlpack_device__", _dlpack_device)):
        setattr(Tensor, name, _in_front(getattr(Tensor, name), ours))
    exporter = _in_front(torch.utils.dlpack.to_dlpack, _dlpack)
    torch.to_dlpack = torch.utils.dlpack.to_dlpack = exporter  # type: ignore[assignment]


def _in_front(theirs: Any, ours: Any) -> Any:
    @functools.wraps(theirs)
    def method(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return (ours if _is_ours(tensor) else theirs)(tensor, *args, **kwargs)

    return method
