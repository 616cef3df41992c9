"""`torch.UntypedStorage` on the device, which has bytes but no pointer.

PyTorch's own methods read a storage through its data pointer, which is null here. The methods below
replace them; for other devices, they call PyTorch's.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
import torch

from calque.device.kernels.copies import to_host
from calque.device.memory import geometry
from calque.device.memory.bitcasts import retype
from calque.device.memory.cell import Cell, active, current, fixed_view_of, layout_of, replace, x64
from calque.device.memory.geometry import Layout
from calque.device.memory.host import host_array
from calque.device.memory.wrapping import share, wrap
from calque.device.runtime.dtypes import to_numpy
from calque.device.runtime.in_flight import settled
from calque.device.runtime.placement import placement_of, spread
from calque.device.runtime.sizes import LARGEST, translated
from calque.upstream import torch_c
from calque.upstream.dispatch_mode import keep_dynamo_out

Storage = torch.UntypedStorage
_NO_ADDRESS = 1 << 62  # a bit that is not set in addresses
_UINT8 = np.dtype("uint8")
_SIZE = Storage.nbytes  # PyTorch's method, before it is replaced


class _Emptied(NamedTuple):
    """The shape and placement of a sharded storage before `resize_(0)`."""

    shape: geometry.Ints
    dtype: Any
    placement: Any
    stride: geometry.Ints | None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


_emptied: WeakKeyDictionary[Cell, _Emptied] = WeakKeyDictionary()


def cell_of_storage(storage: Storage) -> Cell:
    """Returns the cell of a storage of the device.

    Raises:
        RuntimeError: it has no cell.
    """
    cell = getattr(storage, "cell", None)
    if cell is None:
        raise RuntimeError(f"a storage on device {storage.device} has no array behind it")
    return cell


def allocate(nbytes: int) -> Storage:
    """Returns a storage of zeros."""
    if nbytes < 0:
        raise RuntimeError(f"Trying to create a storage of negative size: {nbytes}")
    if nbytes > LARGEST:
        raise ValueError("Overflow when unpacking long long")
    with translated(), x64():
        return wrap(jnp.zeros((nbytes,), _UINT8)).untyped_storage()


def host_bytes(storage: Storage) -> torch.Tensor:
    """Returns a copy of the bytes on the CPU, in the order of the memory."""
    cell = cell_of_storage(storage)
    host = to_host(wrap(current(cell)))
    if cell.stride is not None:
        host = host.permute(geometry.memory_order(layout_of(cell)))
    return host.reshape(-1).view(torch.uint8)


def bytes_tensor(storage: Storage) -> torch.Tensor:
    """Returns the storage as a tensor of bytes, for in-place writes."""
    return torch.empty(0, dtype=torch.uint8, device="jax").set_(storage)


def interpret(cell: Cell, tensor_dtype: torch.dtype, layout: Layout | None) -> None:
    """Give a cell of raw bytes from `torch.load` the dtype of its first tensor.

    Without this, every read of a loaded parameter would convert its bytes again.

    Args:
        cell: the cell of the storage.
        tensor_dtype: the dtype of the tensor.
        layout: the geometry of the tensor if it covers the whole memory.
    """
    dtype = to_numpy(tensor_dtype)
    array = current(cell)
    if cell.viewed or array.dtype != _UINT8 or array.ndim != 1 or array.nbytes % dtype.itemsize:
        return
    if not array.size:
        replace(cell, host_array(torch.empty(0, dtype=tensor_dtype, device="cpu")))
        return
    if active.trace is None:
        # On the host, because on the device each shape would need a new executable.
        flat = torch.from_numpy(np.array(array)).view(tensor_dtype)
        if layout is None or layout.length != flat.numel():
            replace(cell, host_array(flat))
            return
        replace(cell, host_array(torch.as_strided(flat, layout.shape, layout.stride)))
    else:
        with x64():
            flat_array = retype(array, dtype)
            if layout is None or layout.length != flat_array.shape[0]:
                replace(cell, flat_array)
                return
            replace(cell, geometry.from_memory(flat_array, layout))
    if layout.stride != geometry.contiguous_strides(layout.shape):
        cell.stride = layout.stride


# The methods ------------------------------------------------------------------------------------


def _nbytes(self: Storage) -> int | torch.SymInt:
    if getattr(self, "cell", None) is None:  # a fake tensor's storage has a size and no memory
        return _SIZE(self)
    return current(cell_of_storage(self)).nbytes


def _identity(self: Storage) -> int:
    """Returns a unique number of this storage, by which `torch.load` and other code recognize
    shared weights.

    It is not a valid address.
    """
    return _NO_ADDRESS | self._cdata


def _places(data_ptr: Callable[[torch.Tensor], int]) -> Callable[[torch.Tensor], int]:
    """Wraps `Tensor.data_ptr`, which on the device is `_identity` plus the tensor's offset."""

    @functools.wraps(data_ptr)
    def method(self: torch.Tensor) -> int:
        # Relative to null on the device; or already from here, through a mode.
        offset = data_ptr(self)
        if self.device.type != "jax" or self.numel() == 0 or offset >= _NO_ADDRESS:
            return offset
        fixed_view_of(self)
        return _identity(self.untyped_storage()) + offset

    keep_dynamo_out(method.__code__)
    return method


def _getitem(self: Storage, index: Any) -> int:
    if isinstance(index, slice):
        raise RuntimeError(
            "a slice of a jax storage cannot share its memory; use storage.cpu()[...]"
        )
    return int(host_bytes(self)[index].item())


def _setitem(self: Storage, index: Any, value: Any) -> None:
    bytes_tensor(self)[index] = value


def _iter(self: Storage) -> Iterator[int]:
    return iter(host_bytes(self).numpy().tobytes())


def _fill(self: Storage, value: int) -> Storage:
    bytes_tensor(self).fill_(value)
    return self


def _clone(self: Storage) -> Storage:
    source = cell_of_storage(self)
    storage = wrap(current(source)).untyped_storage()
    cell_of_storage(storage).stride = source.stride
    # The clone has no tensor yet, and the first one may have any geometry.
    cell_of_storage(storage).viewed = True
    return storage


def _copy(self: Storage, source: Storage, non_blocking: bool = False) -> Storage:
    size, given = self.nbytes(), source.nbytes()
    if size != given:
        raise RuntimeError(f"size does not match, self was {size} bytes but src was {given} bytes")
    if self.device.type != "jax":
        return self.copy_(host_bytes(source).untyped_storage())
    cell = cell_of_storage(self)
    layout, dtype = layout_of(cell), current(cell).dtype
    with x64():
        if source.device.type == "jax":
            origin = cell_of_storage(source)
            flat = geometry.memory(current(origin), layout_of(origin))
        else:
            on_cpu = source if source.device.type == "cpu" else source.cpu()
            flat = host_array(torch.empty(0, dtype=torch.uint8, device="cpu").set_(on_cpu))
        replace(cell, geometry.from_memory(retype(flat, dtype), layout))
    return self


def _resize(self: Storage, size: int) -> Storage:
    cell = cell_of_storage(self)
    if spread.exists and active.trace is None and _refilled(cell, size):
        return self
    with translated(), x64():
        flat = geometry.memory(current(cell), layout_of(cell))
        if size % flat.dtype.itemsize:
            flat = retype(flat, _UINT8)
        length = size // flat.dtype.itemsize
        missing = max(length - flat.shape[0], 0)
        replace(cell, jnp.pad(flat[:length], (0, missing)))
    cell.stride = None
    cell.viewed = True
    return self


def _refilled(cell: Cell, size: int) -> bool:
    """Restore the shape and placement of a sharded storage that was emptied (`resize_(0)`).

    Its elements become zeros. Code that frees memory temporarily uses this.

    Args:
        cell: the cell of the storage.
        size: the new size in bytes.

    Returns:
        True if this was done. Otherwise, if the storage is being emptied, its shape is stored.
    """
    array = cell.array
    if size == 0 and array.size and placement_of(array) is not None:
        _emptied[cell] = _Emptied(array.shape, array.dtype, array.sharding, cell.stride)
    before = _emptied.get(cell)
    if array.size or before is None or size != before.nbytes:
        return False
    with translated(), x64():
        zeros = jax.jit(
            lambda: jnp.zeros(before.shape, before.dtype), out_shardings=before.placement
        )
        cell.array, cell.stride = settled(zeros()), before.stride
    del _emptied[cell]
    return True


def _write_file(self: Storage, *args: Any, **kwargs: Any) -> None:
    host_bytes(self).untyped_storage()._write_file(*args, **kwargs)


def _set_from_file(self: Storage, *args: Any, **kwargs: Any) -> Storage:
    on_cpu = Storage(self.nbytes())
    on_cpu._set_from_file(*args, **kwargs)
    return self.copy_(on_cpu)


def _repr(self: Storage) -> str:
    lines = "\n ".join(str(byte) for byte in self)
    return f" {lines}\n[torch.storage.UntypedStorage(device={self.device}) of size {len(self)}]"


def _no_pointer(name: str) -> Callable[..., Any]:
    def method(self: Storage, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"{name}: a storage of the jax device has no host memory that could be shared or "
            "mapped; use storage.cpu()"
        )

    return method


OVERRIDES: dict[str, Callable[..., Any]] = {
    "nbytes": _nbytes,
    "size": _nbytes,
    "__len__": _nbytes,
    "__getitem__": _getitem,
    "__setitem__": _setitem,
    "__iter__": _iter,
    "__repr__": _repr,
    "fill_": _fill,
    "clone": _clone,
    "copy_": _copy,
    "resize_": _resize,
    "_write_file": _write_file,
    "_set_from_file": _set_from_file,
    "data_ptr": _identity,
    "new": lambda self: allocate(0),
    "is_shared": lambda self: False,
    "is_pinned": lambda self, device=None: False,
    **{
        name: _no_pointer(name)
        for name in (
            "share_memory_",
            "_share_fd_cpu_",
            "_share_filename_cpu_",
            "_share_cuda_",
            "_get_shared_fd",
            "_byteswap",
            "_swap_data_ptr_",
            "_resize_with_addr_",
        )
    },
}


def _in_front(name: str, ours: Callable[..., Any]) -> Callable[..., Any]:
    theirs = getattr(Storage, name)

    @functools.wraps(theirs)
    def method(self: Storage, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == "jax":
            return ours(self, *args, **kwargs)
        if args and name == "copy_" and args[0].device.type == "jax":
            return ours(self, *args, **kwargs)
        if name == "clone" and active.trace is not None and self.device.type == "cpu":
            # By operators: a trace sees what is read, and which memory is new.
            return (
                torch.empty(0, dtype=torch.uint8, device="cpu").set_(self).clone().untyped_storage()
            )
        return theirs(self, *args, **kwargs)

    return method


def _new(cls: type[Storage], *args: Any, **kwargs: Any) -> Storage:
    device = kwargs.get("device")
    if device is None or torch.device(device).type != "jax":
        return torch_c.StorageBase.__new__(cls, *args, **kwargs)
    content = args[0] if args else 0
    if isinstance(content, int):
        return allocate(content)
    return allocate(len(content)).copy_(
        torch_c.StorageBase.__new__(cls, content)  # pyright: ignore[reportCallIssue]
    )


def _sized(save: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps TorchScript's `save`, whose C++ code reads the size of each storage."""

    @functools.wraps(save)
    def method(self: torch.jit.RecursiveScriptModule, *args: Any, **kwargs: Any) -> Any:
        for tensor in (*self.parameters(), *self.buffers()):
            if tensor.device.type == "jax":
                share(tensor)
        return save(self, *args, **kwargs)

    return method


def install() -> None:
    """Patch PyTorch's methods."""
    for script in (torch.jit.ScriptModule, torch.jit.RecursiveScriptModule):
        for name in ("save", "save_to_buffer"):
            setattr(script, name, _sized(getattr(script, name)))
    for name, method in OVERRIDES.items():
        setattr(Storage, name, _in_front(name, method))
    torch.Tensor.data_ptr = _places(torch.Tensor.data_ptr)  # type: ignore[method-assign]
    Storage.__new__ = _new  # type: ignore[method-assign,assignment]
