"""Maps a call's tensors and numbers to the arguments of its executable.

The executable of a call takes the array behind each tensor. If the tensor is a view of it, the view
is taken inside the executable, so that `x.t() + 1` or `x[3] * 2` is one XLA call. The start of a
view is an argument too, so the rows of a matrix share one executable.
"""

from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import jax
from jax import Array
from torch import Tensor

from calque.device.memory import geometry, view_access
from calque.device.memory.cell import Cell, active, is_whole, x64
from calque.device.memory.geometry import Ints, Layout, View
from calque.device.memory.view_access import AccessPlan
from calque.device.runtime.dtypes import TO_NUMPY
from calque.device.runtime.shared_contexts import sharing


class Slot:
    """A whole array."""

    __slots__ = ()


SLOT = Slot()


class Viewed(Slot):
    """A view of an array, passed as the array followed by the start of the view along some axes."""

    __slots__ = ("__weakref__", "plan")

    def __init__(self, plan: AccessPlan) -> None:
        self.plan: AccessPlan = plan

    @property
    def count(self) -> int:
        """The number of starts."""
        return len(self.plan.free)

    def read(self, array: Array, starts: list[Any]) -> Array:
        """Returns the view of the array, given a start for each free axis."""
        return view_access.read_plan(self.plan, array, starts)

    def write(self, array: Array, value: Array, starts: list[Any]) -> Array:
        """Returns the array with a value written to the view that has these starts."""
        return view_access.write_plan(self.plan, array, value, starts)


_VIEWED: WeakValueDictionary[AccessPlan, Viewed] = WeakValueDictionary()


def _viewed(plan: AccessPlan) -> Viewed:
    """Returns the slot of a plan, shared while it is alive, because executables are cached by its
    identity.
    """
    found = _VIEWED.get(plan)
    if found is None:
        found = _VIEWED.setdefault(plan, Viewed(plan))
    return found


@lru_cache(maxsize=8192)
def _slot(shape: Ints, own: Ints | None, view: View) -> tuple[Viewed, Ints]:
    layout = Layout(shape, own or geometry.contiguous_strides(shape))
    plan, starts = view_access.plan_of(layout, view)
    return _viewed(plan), starts


def viewed(cell: Cell, tensor: Tensor, arrays: list[Any]) -> Viewed | None:
    """Returns the slot of a tensor that is a part of its cell's array, and appends its arrays.

    Returns None for a tensor without elements or of a different dtype than the array, and for
    PyTorch's lazy conjugates and negatives.
    """
    array = cell.array
    if TO_NUMPY[tensor.dtype] != array.dtype or tensor.is_neg() or tensor.is_conj():
        return None
    view = View(tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    if 0 in view.size:
        return None
    slot, starts = _slot(array.shape, cell.stride, view)
    arrays.append(array)
    for start in starts:
        arrays.append(number_array(int, start))
    return slot


def slot_of(tensor: Tensor) -> Slot:
    """Returns the slot of a tensor, which may be a view of its array."""
    cell = getattr(tensor.untyped_storage(), "cell", None)
    if cell is None or active.trace is not None or not cell.viewed or is_whole(cell, tensor):
        return SLOT
    return viewed(cell, tensor, []) or SLOT


_NUMBER_ARRAYS: dict[Any, Array] = {}


def number_array(kind: type, value: object) -> Array:
    """Returns a Python number as a weakly typed array,
    which JAX takes faster than the number itself.
    """
    plain = value and kind is not complex
    place = (kind, value) if plain else (kind, repr(value))  # 0.0 and -0.0 are equal
    array = _NUMBER_ARRAYS.get(place)
    if array is None:
        if len(_NUMBER_ARRAYS) > 1000:
            _NUMBER_ARRAYS.clear()
        with x64(), sharing:
            array = _NUMBER_ARRAYS[place] = jax.numpy.asarray(value)
    return array
