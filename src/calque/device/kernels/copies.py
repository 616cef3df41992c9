"""Copies between the device, the CPU and other devices, and values read by the host."""

import functools
from collections.abc import Callable
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from calque.device.kernels import assumed_checks, remedies
from calque.device.kernels.allocations import output_stride, unset
from calque.device.kernels.out_aliasing import Written
from calque.device.memory import geometry
from calque.device.memory.bitcasts import retype
from calque.device.memory.cell import (
    active,
    cell_of,
    current,
    fixed_view_of,
    layout_of,
    read,
    regeometries,
    replace,
    write,
    x64,
)
from calque.device.memory.host import check_device, host_array, host_tensor, host_values
from calque.device.memory.host_reads import known
from calque.device.memory.placing import placement_like
from calque.device.memory.wrapping import META, wrap_strided
from calque.device.runtime.compile_cache import kept
from calque.device.runtime.dtypes import to_numpy
from calque.device.runtime.placement import beside, placed
from calque.device.runtime.sizes import translated
from calque.device.runtime.staged_calls import call
from calque.errors import TraceError, unrepeatable, user_frame
from calque.errors.branches import is_subscript
from calque.errors.frames import caller_frame
from calque.ops.table.helpers import cast

_COPY = Written("aten::copy_")


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous CPU copy of a device tensor.

    Raises:
        TraceError: a trace is running: its tensors have no values yet.
    """
    use = "copied to the CPU (cpu(), numpy(), tolist())"
    error = functools.partial(no_value, tensor, use, remedies.of_copy)
    return host_tensor(known(read(tensor), use, error))


def concrete(tensor: torch.Tensor, use: str) -> Array | np.ndarray:
    """Returns the array of a tensor whose values the host needs.

    Raises:
        TraceError: the value is not known while `calque.jit` traces; names the user's line.
    """
    return known(read(tensor), use, lambda: no_value(tensor, use))


def no_value(
    tensor: torch.Tensor, use: str, remedy: str | Callable[[FrameType], str] = remedies.of_number
) -> TraceError:
    """Returns the error for a trace that cannot know a value; it names the user's line.

    Args:
        tensor: the tensor.
        use: how the value is used, as the end of the sentence "a tensor is".
        remedy: the remedy, or a function that finds it from the frame that reads the value.
    """
    if not isinstance(remedy, str):
        remedy = remedy(user_frame() or caller_frame())
    return unrepeatable(
        f"a tensor of shape {tuple(tensor.shape)} and dtype {tensor.dtype} is {use}",
        "inside calque.jit, where it has no value yet",
        remedy,
    )


def _no_index(tensor: torch.Tensor) -> TraceError:
    return unrepeatable(
        f"a tensor of shape {tuple(tensor.shape)} and dtype {tensor.dtype} is used as an index",
        "or as the bound of a slice inside calque.jit, where it has no value yet",
        "Give the index a dimension: `x[i.reshape(1)]` and `x[i.reshape(1)] = row` read and write "
        "one row (of a list, after `torch.stack`). For n elements from i, index with "
        "`i + torch.arange(n, device=i.device)`.",
    )


def local_scalar_dense(tensor: torch.Tensor) -> bool | int | float | complex:
    """`Tensor.item()`."""
    if active.trace is not None:
        number = active.trace.number(tensor)
        if number is not None:
            return number
        answer = assumed_checks.answer(tensor)
        if answer is not None:
            return answer
    use = "read as a Python number (item(), float(), bool(), `if`)"

    def unknown() -> TraceError:
        is_index = tensor.dtype != torch.bool and is_subscript(caller_frame())
        return _no_index(tensor) if is_index else no_value(tensor, use)

    value = known(read(tensor), use, unknown)
    if not value.size:
        raise RuntimeError("_local_scalar_dense: Empty tensor not supported")
    with translated():
        return value.item()


def copy_from(
    source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    """`target.copy_(source)`, with at least one of the two on the device."""
    if target.device.type == "jax":
        _copy_in(source, target)
    elif target.device.type == "meta":
        return target
    else:
        target.copy_(to_host(source))
    return target


def _copy_in(source: torch.Tensor, target: torch.Tensor) -> None:
    if source.device.type == "cpu" and _is_like(source, target) and active.trace is None:
        placement = placement_like(target)
        if placement is not None:  # no device gets the whole tensor
            replace(cell_of(target), placed(host_values(source).copy(), placement))
            return
    array = read(source) if source.device.type == "jax" else host_array(source.detach().cpu())
    shape = tuple(target.size())  # an uninitialized parameter has no `shape`
    check_broadcast(array.shape, shape)
    dtype = to_numpy(target.dtype)
    with translated(), x64():
        if array.dtype != dtype:
            array = convert(array, dtype)
        if array.shape != shape:
            array = _expander(array.shape, array.dtype, shape)(array)
    write(target, array)


def _is_like(source: torch.Tensor, target: torch.Tensor) -> bool:
    return source.shape == target.shape and source.dtype == target.dtype and source.ndim <= 64


@kept
def _expander(
    shape: geometry.Ints, dtype: object, target: geometry.Ints
) -> Callable[[Array], Array]:
    return jax.jit(functools.partial(jnp.broadcast_to, shape=target))


def check_broadcast(shape: geometry.Ints, target: geometry.Ints) -> None:
    """Raise PyTorch's RuntimeError if one shape does not broadcast to another."""
    if shape == target:
        return
    if len(shape) > len(target):
        raise RuntimeError(
            f"output with shape {list(target)} doesn't match the broadcast shape {list(shape)}"
        )
    for i, n in enumerate(reversed(shape), 1):
        if n not in (1, target[-i]):
            raise RuntimeError(
                f"The size of tensor a ({target[-i]}) must match the size of tensor b ({n}) at "
                f"non-singleton dimension {len(target) - i}"
            )


def convert(array: Array, dtype: np.dtype) -> Array:
    """Returns an array in a different dtype, as C casts (complex numbers lose their imaginary
    part).
    """
    return call(_converter(array.shape, array.dtype, dtype), (array,))


@kept
def _converter(shape: geometry.Ints, source: object, target: np.dtype) -> Callable[[Array], Array]:
    return jax.jit(functools.partial(cast, dtype=target))


def to_copy(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """`Tensor.to`, if it makes a copy."""
    if layout is not None and layout != torch.strided:
        raise RuntimeError(f"the jax device has no tensors of layout {layout}")
    dtype = self.dtype if dtype is None else dtype
    device = self.device if device is None else device
    stride = output_stride(self, memory_format)
    if device.type == "jax":
        check_device(device)
        array = read(self) if self.device.type == "jax" else host_array(self.detach())
        if dtype != self.dtype:
            with translated(), x64():
                array = convert(array, to_numpy(dtype))
        return wrap_strided(array, stride)
    if device.type == "meta":
        return torch.empty_strided(self.shape, stride, dtype=dtype, device="meta")
    if dtype != self.dtype:
        self = to_copy(self, dtype=dtype)
    host = to_host(self)
    if stride != host.stride():
        host = torch.empty_strided(host.shape, stride, dtype=host.dtype, device="cpu").copy_(host)
    return host if device.type == "cpu" else host.to(device)


def clone(
    tensor: torch.Tensor, *, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    """`Tensor.clone`: the clone shares the immutable array until one of them is written to."""
    return wrap_strided(read(tensor), output_stride(tensor, memory_format))


def copy_(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`Tensor.copy_`."""
    if not isinstance(source, torch.Tensor):
        source = torch.tensor(source, device="cpu")
    _COPY.check_memory(self, (source,))
    return copy_from(source, self, non_blocking)


def resize_(
    tensor: torch.Tensor, size: Any, *, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    """`Tensor.resize_`: keeps the elements in memory order; new elements are uninitialized.

    A tensor that already has the size keeps its strides, unless a memory format is given.
    """
    cell = cell_of(tensor)
    shape = tuple(size)
    if tensor.shape == shape and memory_format is None:
        return tensor
    fake = torch.empty(shape, device="meta", memory_format=memory_format or torch.contiguous_format)
    needed = fixed_view_of(tensor).offset + fake.numel()
    layout = layout_of(cell)
    itemsize = tensor.dtype.itemsize
    with translated(), x64():
        flat = geometry.memory(current(cell), layout)
        have = flat.shape[0] * flat.dtype.itemsize // itemsize
        if needed > have:
            flat = retype(flat, to_numpy(tensor.dtype))
            flat = jnp.pad(flat, (0, needed - have), constant_values=unset(flat.dtype))
            cell.stride = None
            replace(cell, flat)
    regeometries.count += 1
    cell.viewed = True
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
        META, tensor, tensor.untyped_storage(), tensor.storage_offset(), shape, fake.stride()
    )
    return tensor


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """`torch.equal`."""
    if a.shape != b.shape:
        return False
    array = read(a)
    with x64():
        same = jnp.array_equal(array, beside(read(b), array))
    return bool(known(same, "compared (torch.equal)", lambda: no_value(a, "compared")))


def is_set_to(a: torch.Tensor, b: torch.Tensor) -> bool:
    """`Tensor.is_set_to`: the same storage through the same geometry."""
    return (
        a.untyped_storage() is b.untyped_storage()
        and a.storage_offset() == b.storage_offset()
        and a.shape == b.shape
        and a.stride() == b.stride()
    )


def kernels() -> dict[str, Any]:
    """Returns the kernels of copies by operator name."""
    return {
        "_copy_from": copy_from,
        "_copy_from_and_resize": copy_from,
        "_to_copy": to_copy,
        "copy_": copy_,
        "clone": clone,
        "_lazy_clone": clone,
        "resize_": resize_,
        "equal": equal,
        "is_set_to": is_set_to,
        "_local_scalar_dense": local_scalar_dense,
    }
