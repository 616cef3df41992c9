"""Descriptions of CPU tensors and NumPy arrays that a traced function creates and leaves behind.

Those that share memory in the trace share it in each call, too.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from calque.device.memory.geometry import View
from calque.program.gradients.graph_boundary import has_graph
from calque.program.host_descriptions import (
    ArrayView,
    BufferView,
    HostArray,
    HostBytes,
    HostMemory,
    HostTensor,
    HostView,
    OnHost,
)
from calque.program.results import Constant, Copied, Description, Leaf
from calque.state.values import is_of_objects
from calque.upstream import torch_c


def _range_of(array: np.ndarray) -> tuple[int, int]:
    """Returns where an array's memory begins and ends."""
    if array.size == 0:
        return array.ctypes.data, array.ctypes.data
    steps = [(n - 1) * stride for n, stride in zip(array.shape, array.strides)]
    first = array.ctypes.data + sum(step for step in steps if step < 0)
    last = array.ctypes.data + sum(step for step in steps if step > 0)
    return first, last + array.itemsize


def _root_of(array: np.ndarray) -> Any:
    """Returns the array or other object that owns an array's memory."""
    root: Any = array
    while isinstance(root, np.ndarray) and root.base is not None:
        root = root.base
    return root.obj if isinstance(root, memoryview) else root


def _address_of(value: bytes | bytearray | memoryview) -> int:
    return np.frombuffer(value, np.uint8).ctypes.data


def _is_released(value: memoryview) -> bool:
    try:
        return value.nbytes < 0
    except ValueError:
        return True


def _is_whole(array: np.ndarray) -> bool:
    """Returns True if an array has all bytes of its memory, each once."""
    first, last = _range_of(array)
    return last - first == array.nbytes and all(stride >= 0 for stride in array.strides)


def is_on_host(value: object) -> bool:
    """Returns True for a CPU tensor."""
    return issubclass(type(value), torch.Tensor) and value.device.type == "cpu"


def memory_of(tensor: torch.Tensor) -> int:
    """Returns an identifier of a tensor's memory."""
    if not torch_c.has_storage(tensor):
        return id(tensor)
    return tensor.untyped_storage()._cdata


def is_shared_on_host(tensor: torch.Tensor) -> bool:
    """Returns True if other CPU tensors may be created over a tensor's memory."""
    if tensor.layout is not torch.strided or tensor.is_quantized or has_graph(tensor):
        return False
    return tensor.device.type == "cpu"


Block = HostMemory | HostArray | HostBytes

Source = Callable[[torch.Tensor], tuple[Description, torch.Tensor] | None]
"""Returns the description of a CPU tensor from outside over the same memory, and it; None if there
is none.
"""


class HostResults:
    """Describes what a trace has created on the host.

    What shares memory is found by its address: the memory of a tensor may be that of an array.

    Args:
        known: the objects that existed before the trace, by id.
    """

    def __init__(self, known: Mapping[int, Any]) -> None:
        self._known = known
        self._memory: dict[int, Block] = {}
        self._blocks: list[tuple[int, int, Block]] = []
        self._made: list[tuple[OnHost, Any]] = []  # which keeps ids and addresses unique
        self._found: list[tuple[HostTensor, torch.Tensor]] = []
        self._whole = False

    def tensor(self, value: torch.Tensor, source: Source, leaf: Leaf | None) -> Description:
        """Returns the description of a CPU tensor.

        Args:
            source: finds tensors from outside.
            leaf: its properties as an autograd leaf.
        """
        size, stride = tuple(value.shape), tuple(value.stride())
        outside = source(value)
        if outside is None:
            view = View(size, stride, int(value.storage_offset()))
            made = HostTensor(self._memory_of(value), value.dtype, view, leaf)
            self._made.append((made, value))
            return made
        place, base = outside
        if base.dtype != value.dtype:
            return Copied(value)
        distance = int(value.storage_offset() - base.storage_offset())
        return HostView(place, View(size, stride, distance))

    def knows(self, value: torch.Tensor, others: Mapping[int, torch.Tensor]) -> bool:
        """Returns True if a tensor, or one over its memory, existed before the trace.

        Args:
            others: tensors that existed before, too, by id.
        """
        if id(value) in self._known or id(value) in others:
            return True
        first = value.untyped_storage().data_ptr()
        buffers = (one for one in self._known.values() if type(one) is bytearray and one)
        if any(0 <= first - _address_of(one) < len(one) for one in buffers):
            return True
        before = (one for held in (self._known, others) for one in held.values() if is_on_host(one))
        return any(memory_of(one) == memory_of(value) for one in before)

    def made_otherwise(self, value: torch.Tensor) -> Description:
        """Returns the description of a CPU tensor that no operator has made: each call creates it
        if its memory is that of an array, a bytearray or another buffer.
        """
        made = self.tensor(value, lambda tensor: None, None)
        assert isinstance(made, HostTensor)
        self._found.append((made, value))
        return made

    def _memory_of(self, value: torch.Tensor) -> HostMemory:
        storage = value.untyped_storage()
        key, first = storage._cdata, storage.data_ptr()
        if key not in self._memory:
            self._place(key, storage, HostMemory(storage), (first, first + storage.nbytes()))
        found = self._memory[key]
        assert isinstance(found, HostMemory)
        return found

    def array(self, value: np.ndarray, source: Source) -> Description:
        """Returns the description of a NumPy array; see `tensor`."""
        if id(value) in self._known or is_of_objects(value):
            return Constant(value)
        if value.dtype.hasobject or type(value) is not np.ndarray:
            return Copied(value)
        first = value.ctypes.data
        whose = self._owner_outside(*_range_of(value))
        if whose is not None:
            return ArrayView(Constant(whose), value, first - whose.ctypes.data)
        root = _root_of(value)
        if isinstance(root, torch.Tensor) and root.device.type == "cpu":
            outside = source(root)
            if outside is not None:
                return ArrayView(outside[0], value, first - outside[1].data_ptr())
            return ArrayView(
                self._memory_of(root), value, first - root.untyped_storage().data_ptr()
            )
        if type(root) is bytearray:
            known = self.bytes(root)
            return ArrayView(known, value, first - _address_of(root))
        if type(root) is not np.ndarray or root.dtype.hasobject or not _is_whole(root):
            return Copied(value)
        if id(root) not in self._memory:
            self._place(id(root), root, HostArray(root), _range_of(root))
        known = self._memory[id(root)]
        return known if root is value else ArrayView(known, value, first - root.ctypes.data)

    def bytes(self, value: bytearray) -> Description:
        """Returns the description of a bytearray."""
        if id(value) in self._known:
            return Constant(value)
        if id(value) not in self._memory:
            first = _address_of(value)
            self._place(id(value), value, HostBytes(value), (first, first + len(value)))
        return self._memory[id(value)]

    def buffer(self, value: memoryview, source: Source) -> Description | None:
        """Returns the description of a memoryview; None if no other call can make the same."""
        if id(value) in self._known or _is_released(value):
            return Constant(value)
        owner = value.obj
        if not value.c_contiguous or not isinstance(owner, bytes | bytearray | np.ndarray):
            return None
        if isinstance(owner, np.ndarray):
            whose = self.array(owner, source)
            return BufferView(whose, value) if owner.nbytes == value.nbytes else None
        whole = Constant(owner) if isinstance(owner, bytes) else self.bytes(owner)
        return BufferView(whole, value, _address_of(value) - _address_of(owner))

    def itself(self, value: Any) -> Description:
        """Returns the description of a value of the trace that serves only one call, which then
        gets all values of the trace on the host.
        """
        self._whole = True
        return Constant(value)

    def settle(self) -> None:
        """Finish; nothing more may be described."""
        for made, value in self._made if self._whole else ():
            made.original = value
        for made, value in self._found:
            if made.memory.within is None and value.untyped_storage().resizable():
                made.original, made.memory.original = value, value.untyped_storage()

    def _place(
        self,
        key: int,
        value: Any,
        memory: Block,
        place: tuple[int, int],
    ) -> None:
        """Record memory that begins and ends at some addresses, and what is part of what."""
        first, last = place
        self._made.append((memory, value))
        self._memory[key] = memory
        if first == last:
            return
        whose = self._owner_outside(first, last)
        blocks = self._blocks
        if whose is not None:
            memory.within = Constant(whose), first - whose.ctypes.data
        elif not isinstance(memory, HostBytes) and (
            outer := next(((b, a) for a, z, b in blocks if a <= first and last <= z), None)
        ):
            memory.within = outer[0], first - outer[1]
        else:
            for begin, end, one in blocks:
                if first <= begin and end <= last and one.within is None:
                    one.within = memory, begin - first
        blocks.append((first, last, memory))

    def _owner_outside(self, first: int, last: int) -> np.ndarray | None:
        """Returns an array from outside that contains all bytes between two addresses."""
        for one in self._arrays_outside if first != last else ():
            begin, end = _range_of(one)
            if begin <= first and last <= end:
                return one
        return None

    @functools.cached_property
    def _arrays_outside(self) -> list[np.ndarray]:
        # `isinstance` could run user code for `__class__`.
        arrays = [one for one in self._known.values() if issubclass(type(one), np.ndarray)]
        arrays += [root for root in map(_root_of, arrays) if type(root) is np.ndarray]
        return [one for one in arrays if _is_whole(one)]
