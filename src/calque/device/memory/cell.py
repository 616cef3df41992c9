"""Cells: the contents of the device's storages, and how tensors read and write them.

The cell of a tensor is an attribute of its `UntypedStorage`, which PyTorch keeps alive with the
storage and shares through every alias created in C++ (`detach`, `.data`, saved tensors,
parameters). While `calque.jit` traces, reads and writes of the thread go to the trace instead of
the cell, so a failed trace changes nothing.
"""

import math
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
from calque.device.memory.bitcasts import retype
from calque.device.memory.geometry import Layout, View
from calque.device.memory.moving_views import MovingViews, is_moving
from calque.device.runtime import sizes
from calque.device.runtime.dtypes import TO_NUMPY
from calque.device.runtime.in_flight import settled
from calque.device.runtime.placement import beside, kept, spread
from calque.device.runtime.threads import Presence
from calque.errors import UnsupportedOpError, at_user_line
from calque.errors.handlers import settles
from calque.upstream.jax_internals import enable_x64 as _enable_x64
from calque.upstream.python_internals import entered_unseen


class Cell:
    """The array of one storage.

    Attributes:
        array: the elements; its shape and `stride` define the position of each in memory.
        stride: the strides that the array represents; None if row-major.
        viewed: whether a tensor of this storage may have a geometry other than the row-major one.
    """

    __slots__ = ("__weakref__", "array", "stride", "viewed")

    def __init__(self, array: Array, stride: geometry.Ints | None = None) -> None:
        self.array: Array = array
        self.stride: geometry.Ints | None = stride
        self.viewed: bool = False


class Trace(Protocol):
    """The interface of a running trace for the cells (see `calque.program.lifting`)."""

    callbacks: bool  # whether the program may call back to the host
    assumptions: Any  # supplies assumed values; None if values must not be assumed
    failures: list[Any] | None  # collected by `trace_checks`; None if checks are not reported
    looking: bool  # whether to check values as in eager calls
    moving: MovingViews  # the views whose position differs between calls
    placements: WeakKeyDictionary["Cell", Any]  # of storages created in the trace
    texts: dict[str, Any]  # the texts of tensors, with the lines that created them

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
        trace: the running trace; None in eager mode.
        observer: receives the values that the host reads outside traces.
        inlining: whether jitted functions are inlined into the enclosing one.
        settling: whether the thread is changing cells for which other threads wait (see
            `call_serialization`).
    """

    trace: Trace | None = None
    observer: Observer | None = None
    inlining: bool = False
    settling: bool = False

    def __init__(self) -> None:  # once in each thread
        self._presence = Presence()


active: _Active = _Active()


class _Regeometries:
    """Counts the operators that changed a tensor's geometry in place (`t_`, `resize_`, `set_`).

    A program compiled for some tensors needs to check their geometry only if the count has changed.
    """

    count = 0


regeometries: _Regeometries = _Regeometries()


class x64:
    """A context manager in which JAX has 64-bit types, in this thread only.

    No exception set by another thread can occur between the switch and storing the previous value.
    The interpreter checks for such exceptions after a call and when a function is entered, but not
    at attribute access, which is how the switch is implemented.
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
        RuntimeError: the storage has no cell, because C++ code created it without calling the
            device.
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
        refuse_nested(tensor)
        raise RuntimeError(
            f"a tensor of shape {tuple(tensor.shape)} on device 'jax' has no array behind it"
        ) from None


def refuse_nested(tensor: torch.Tensor) -> None:
    """Raise UnsupportedOpError, at the user's line, for a nested tensor."""
    if tensor.is_nested:
        raise UnsupportedOpError(
            at_user_line(
                "a nested tensor is passed to a compiled function or kept by it, or read as one "
                "array, which the jax device does not support.\nUse a padded tensor with a mask, "
                "pass its values and offsets (`x.values()`, `x.offsets()`), or keep this part on "
                "the CPU."
            )
        )


def other_device(tensor: torch.Tensor) -> str:
    """Returns the remedy for an argument on a different device."""
    where = "the CPU" if tensor.device.type == "cpu" else f"device {tensor.device}"
    return (
        f"The tensor of shape {tuple(tensor.shape)} on {where} has to be moved to the jax "
        'device: `x.to("jax")`, or `model.to("jax")` if the model was left there.'
    )


def layout_of(cell: Cell) -> Layout:
    """Returns the layout of a cell's array."""
    shape = cell.array.aval.shape
    return Layout(shape, cell.stride) if cell.stride else geometry.row_major(shape)


def size_in_bytes(cell: Cell) -> int:
    """Returns the number of bytes of a cell's storage."""
    aval = cell.array.aval  # `array.nbytes` is a Python property
    length = math.prod(aval.shape) if cell.stride is None else layout_of(cell).length
    return length * aval.dtype.itemsize


def view_of(tensor: torch.Tensor) -> View:
    """Returns the geometry of a tensor."""
    return View(tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def fixed_view_of(tensor: torch.Tensor) -> View:
    """Returns the geometry of a tensor that outlives the trace, or whose position is asked for.

    If it moves between calls, the function is traced again, for one position.
    """
    view = view_of(tensor)
    if is_moving(view.offset):
        moving().refuse()
    return view


def moving() -> MovingViews:
    """Returns the moving views of the running trace."""
    trace = active.trace
    return MovingViews() if trace is None else trace.moving


def _planner(view: View) -> view_access.Planner | None:
    """Returns the function that plans the access to a moving view; None for other views."""
    return moving().plan if is_moving(view.offset) else None


def current(cell: Cell) -> Array:
    """Returns the array of a cell; inside a trace, the traced array."""
    trace = active.trace
    return cell.array if trace is None else trace.read(cell)


def replace(cell: Cell, array: Array) -> None:
    """Give a cell a new array of the same shape and dtype; keeps its placement."""
    trace = active.trace
    if trace is None:
        cell.array = kept(array, cell.array) if spread.exists else array
    else:
        trace.write(cell, array)


def swap(cell: Cell, before: Array, array: Array) -> bool:
    """Replace a cell's array with one computed from it, if the cell still holds the old array.

    Threads may write to different elements of a storage at the same time. If another thread has
    written since the array was read, the caller must compute again.

    Returns:
        True if the cell held `before`. The check and the write are atomic, because Python switches
        threads only at calls and backward jumps.
    """
    if spread.exists:
        array = kept(array, before)
    if cell.array is before:
        cell.array = array
        return True
    return False


def is_whole(cell: Cell, tensor: torch.Tensor) -> bool:
    """Returns True if a tensor has exactly the geometry and dtype of its cell's array.

    PyTorch's lazy conjugates and negatives do not: several operators (`clone`, `copy_`, `mm`) pass
    them to the device unresolved.
    """
    aval = cell.array.aval
    dtype = TO_NUMPY[tensor.dtype]
    # Equal NumPy dtypes may be different objects.
    if tensor.shape != aval.shape or (dtype is not aval.dtype and dtype != aval.dtype):
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
        return settled(_lazy(tensor, view_access.read(array, layout, view, _planner(view))))


def _lazy(tensor: torch.Tensor, array: Array) -> Array:
    """Converts between a tensor's values and its memory, by its conjugate and negative bits."""
    if tensor.is_conj():
        array = jnp.conj(array)
    return -array if tensor.is_neg() else array


def write(tensor: torch.Tensor, value: Array) -> None:
    """Replace the elements of a tensor of the device with an array of its shape and dtype."""
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
        return view_access.write(array, layout, view, value, _planner(view))
    flat = retype(geometry.memory(array, layout), value.dtype)
    flat = view_access.write(flat, Layout(flat.shape, (1,)), view, value, _planner(view))
    return geometry.from_memory(retype(flat, array.dtype), layout)


def check_writable(tensor: torch.Tensor, is_read: bool = False) -> None:
    """Raise RuntimeError if a write would reach an element through two indices.

    PyTorch checks only for repeated axes. Through overlapping windows, it writes several times.

    Args:
        tensor: the written tensor.
        is_read: whether the new elements depend on the old ones, in which case overlapping windows
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
