"""Cells: the contents of the device's storages, and how tensors read and write them.

The cell of a tensor is an attribute of its `UntypedStorage`, which PyTorch keeps alive with the
storage and shares through every alias made in C++ (`detach`, `.data`, saved tensors, parameters).
While `calque.jit` traces, reads and writes of the thread go to the trace instead of the cell, so
a trace that fails has changed nothing.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import methodcaller
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import jax.numpy as jnp
import torch
from jax import Array

from calque.device.memory import geometry, view_access
from calque.device.memory.geometry import Layout, View
from calque.device.memory.retyping import retype
from calque.device.runtime import sizes
from calque.device.runtime.dtypes import TO_NUMPY
from calque.device.runtime.in_flight import settled
from calque.device.runtime.interrupts import settles
from calque.device.runtime.placement import beside, kept, spread
from calque.device.runtime.threads import Presence
from calque.upstream.jax_internals import enable_x64 as _enable_x64
from calque.upstream.python_internals import entered_unseen


class Cell:
    """The array of one storage.

    Attributes:
        array: the elements; its shape and `stride` together say where each stands in memory.
        stride: the strides the array stands for; None for row-major ones.
        viewed: whether a tensor may see this storage through any geometry but the row-major one.
    """

    __slots__ = ("__weakref__", "array", "stride", "viewed")

    def __init__(self, array: Array, stride: geometry.Ints | None = None) -> None:
        self.array: Array = array
        self.stride: geometry.Ints | None = stride
        self.viewed: bool = False


class Trace(Protocol):
    """The interface of a running trace for the cells (see `calque.program.lifting`)."""

    callbacks: bool  # whether the program may call back to the host
    assumptions: Any  # who assumes the values that are asked for; None if nobody does
    failures: list[Any] | None  # what `trace_checks` collects; None if nobody looks at it
    looking: bool  # whether values are to be checked as PyTorch checks them eagerly
    placements: WeakKeyDictionary["Cell", Any]  # of storages that are made in the trace
    texts: dict[str, Any]  # what was shown of tensors, and where

    def is_fresh(self, cell: Cell) -> bool: ...

    def read(self, cell: Cell) -> Array: ...

    def write(self, cell: Cell, array: Array) -> None: ...

    def created(self, cell: Cell, storage: torch.UntypedStorage) -> None: ...

    def constant(self, tensor: torch.Tensor) -> Array: ...

    def number(self, tensor: torch.Tensor) -> Any: ...

    def value(self, array: Array, use: str, error: Callable[[], Exception]) -> Any: ...

    def shown(self, file: str) -> bool: ...

    def unassuming(self) -> AbstractContextManager[None]: ...


class Observer(Protocol):
    """Receives the values that the host reads in an eager call (see `host_reads`)."""

    def see(self, array: Array, use: str) -> None: ...


class _Active(threading.local):
    """The state of one thread.

    Attributes:
        trace: the trace that runs; None while its thread is eager.
        observer: what is told of reads by the host, outside of traces.
        inlining: whether jitted functions run as parts of the one around them.
        settling: whether the thread changes cells that other threads wait for (see `turns`).
    """

    trace: Trace | None = None
    observer: Observer | None = None
    inlining: bool = False
    settling: bool = False

    def __init__(self) -> None:  # once in each thread
        self._presence = Presence()


active: _Active = _Active()


class _Regeometries:
    """Counts the operators that gave a tensor another geometry in place (`t_`, `resize_`, `set_`).

    A program compiled for some tensors needs to look at their geometry only if this has moved.
    """

    count = 0


regeometries: _Regeometries = _Regeometries()


class x64:
    """A context manager in which JAX has 64-bit types, in this thread only.

    No exception of another thread comes between the switch and the note of what was there before.
    The interpreter looks for those after a call, and where a function is entered, but not where an
    attribute is read; so the switch is one.
    """

    __slots__ = ("_previous",)

    _swap = _enable_x64.swap_local
    _switched_on = property(methodcaller("_swap", True))

    @settles
    @entered_unseen
    def __enter__(self) -> None:
        self._previous = self._switched_on

    @settles
    @entered_unseen
    def __exit__(self, *_: object) -> None:
        _enable_x64.set_local(self._previous)


def cell_of(tensor: torch.Tensor) -> Cell:
    """Returns the cell behind a tensor of the device.

    Raises:
        RuntimeError: the storage has no cell: it was made by C++ code that knows nothing of the
            device, and holds no memory.
    """
    storage = tensor.untyped_storage()
    try:
        return storage.cell  # type: ignore[attr-defined]
    except AttributeError:
        if tensor.device.type != "jax":
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"jax:0 and {tensor.device}!\n{other_device(tensor)}"
            ) from None
        raise RuntimeError(
            f"a tensor of shape {tuple(tensor.shape)} on device 'jax' has no array behind it"
        ) from None


def other_device(tensor: torch.Tensor) -> str:
    """Returns the remedy for a tensor on another device among those of this one."""
    where = "the CPU" if tensor.device.type == "cpu" else f"device {tensor.device}"
    return (
        f"The tensor of shape {tuple(tensor.shape)} on {where} has to be moved to the jax "
        'device: `x.to("jax")`, or `model.to("jax")` if the model was left there.'
    )


def layout_of(cell: Cell) -> Layout:
    """Returns the layout of a cell's array."""
    shape = cell.array.shape
    return Layout(shape, cell.stride or geometry.contiguous_strides(shape))


def size_in_bytes(cell: Cell) -> int:
    """Returns how many bytes a cell's storage has."""
    array = cell.array
    return array.nbytes if cell.stride is None else layout_of(cell).length * array.dtype.itemsize


def view_of(tensor: torch.Tensor) -> View:
    """Returns the geometry of a tensor."""
    return View(tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def current(cell: Cell) -> Array:
    """Returns the array of a cell; inside a trace, the traced array."""
    trace = active.trace
    return cell.array if trace is None else trace.read(cell)


def replace(cell: Cell, array: Array) -> None:
    """Give a cell a new array of the same shape and dtype; its placement stays."""
    trace = active.trace
    if trace is None:
        cell.array = kept(array, cell.array) if spread.exists else array
    else:
        trace.write(cell, array)


def swap(cell: Cell, before: Array, array: Array) -> bool:
    """Replace a cell's array by one computed from it, if it still holds the old one.

    Threads may write different elements of a storage at once. What one of them computes from the
    array that it read lacks what another has written since: then it has to compute again.

    Returns:
        True if the cell held `before`. Nothing comes between the look and the write: Python
        changes threads at calls and backward jumps only.
    """
    if spread.exists:
        array = kept(array, before)
    if cell.array is before:
        cell.array = array
        return True
    return False


def is_whole(cell: Cell, tensor: torch.Tensor) -> bool:
    """Returns True if a tensor has exactly the geometry and dtype of its cell's array.

    PyTorch's lazy conjugates and negatives do not: several operators (`clone`, `copy_`, `mm`) hand
    them to the device as they are.
    """
    array = cell.array
    dtype = TO_NUMPY[tensor.dtype]
    # Two equal dtypes of NumPy may be two objects.
    if tensor.shape != array.shape or (dtype is not array.dtype and dtype != array.dtype):
        return False
    if tensor.storage_offset() or tensor.is_neg() or tensor.is_conj():
        return False
    return tensor.is_contiguous() if cell.stride is None else tensor.stride() == cell.stride


def read(tensor: torch.Tensor) -> Array:
    """Returns the elements of a tensor of the device, as an array of its shape and dtype."""
    try:
        cell: Cell = tensor.untyped_storage().cell  # type: ignore[attr-defined]
    except AttributeError:
        cell = cell_of(tensor)
    if cell.viewed and not is_whole(cell, tensor):
        with x64():
            return _read_view(cell, tensor)
    trace = active.trace
    return cell.array if trace is None else trace.read(cell)


def _read_view(cell: Cell, tensor: torch.Tensor) -> Array:
    array, layout, view = current(cell), layout_of(cell), view_of(tensor)
    dtype = TO_NUMPY[tensor.dtype]
    if active.trace is None:
        sizes.check_fits(view.size, dtype.itemsize)
    with sizes.translated():
        if array.dtype != dtype:
            array = retype(geometry.memory(array, layout), dtype)
            layout = Layout(array.shape, (1,))
        return settled(_lazy(tensor, view_access.read(array, layout, view)))


def _lazy(tensor: torch.Tensor, array: Array) -> Array:
    """Converts between a tensor's values and its memory, by its conjugate and negative bits."""
    if tensor.is_conj():
        array = jnp.conj(array)
    return -array if tensor.is_neg() else array


def write(tensor: torch.Tensor, value: Array) -> None:
    """Replace the elements of a tensor of the device by an array of its shape and dtype."""
    cell = cell_of(tensor)
    if not cell.viewed or is_whole(cell, tensor):
        replace(cell, value)
        return
    with sizes.translated(), x64():
        value = _lazy(tensor, value)
        while True:
            before = current(cell)
            if spread.exists:
                value = beside(value, before)
            array = settled(_with_view(before, layout_of(cell), view_of(tensor), value))
            if active.trace is not None:
                return replace(cell, array)
            if swap(cell, before, array):
                return None


def _with_view(array: Array, layout: Layout, view: View, value: Array) -> Array:
    """Returns a storage's array with a view of it replaced."""
    if array.dtype == value.dtype:
        return view_access.write(array, layout, view, value)
    flat = retype(geometry.memory(array, layout), value.dtype)
    flat = view_access.write(flat, Layout(flat.shape, (1,)), view, value)
    return geometry.from_memory(retype(flat, array.dtype), layout)


def check_writable(tensor: torch.Tensor, is_read: bool = False) -> None:
    """Raise RuntimeError if a write would reach one element through two indices.

    PyTorch only looks for repeated axes. Through overlapping windows it writes several times.

    Args:
        tensor: what is written.
        is_read: whether what is written depends on what is there: through overlapping windows it
            would depend on the order of the writes.
    """
    if tensor.is_contiguous():
        return
    view = view_of(tensor)
    if geometry.overlaps(view) or (is_read and geometry.meets_itself(view)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            "single memory location. Please clone() the tensor before performing the operation."
        )
