"""Descriptions of CPU tensors and NumPy arrays that a traced function creates and leaves behind.

Those that share memory in the trace share it in each call, too.
"""

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calque.device.memory.geometry import View
from calque.program.gradients.graph_boundary import has_graph
from calque.program.results import Constant, Copied, Description, Leaf, Made, Outputs
from calque.state.values import is_of_objects
from calque.upstream import torch_c


class OnHost(Made):
    """A value on the host that each call creates.

    Attributes:
        original: the value of the trace, if the program serves only that call; otherwise None.
    """

    original: Any = None

    def make(self, outputs: Outputs) -> Any:
        return self.anew(outputs) if self.original is None else self.original

    def anew(self, outputs: Outputs) -> Any:
        """Creates the value."""
        raise NotImplementedError


@dataclass(eq=False)
class HostMemory(OnHost):
    """Memory of CPU tensors, of which each call creates a copy.

    Attributes:
        storage: the memory.
        within: the memory of which it is a part, and its distance from the beginning of that, in
            bytes; None if it stands alone.
    """

    storage: torch.UntypedStorage
    within: "tuple[Description, int] | None" = None
    shared = True

    def anew(self, outputs: Outputs) -> torch.UntypedStorage:
        if self.within is None:
            return self.storage.clone()
        owner, distance = self.within
        part = _bytes_of(owner.build(outputs))[distance : distance + self.storage.nbytes()]
        with warnings.catch_warnings():  # as in the function, the array may be read-only
            warnings.simplefilter("ignore", UserWarning)
            return torch.from_numpy(part).untyped_storage()


@dataclass(eq=False)
class HostTensor(OnHost):
    """A CPU tensor over memory that the call creates.

    Attributes:
        memory: its memory.
        dtype, view: its dtype and geometry.
        leaf: its properties as an autograd leaf; None if it requires no gradient.
    """

    memory: HostMemory
    dtype: torch.dtype
    view: View
    leaf: Leaf | None = None

    def anew(self, outputs: Outputs) -> torch.Tensor:
        size, stride, offset = self.view
        storage = self.memory.build(outputs)
        tensor = torch.empty(0, dtype=self.dtype).set_(storage, offset, size, stride)
        tensor = self.typed(tensor)
        return tensor if self.leaf is None else self.leaf.of(tensor, outputs)


@dataclass(eq=False)
class HostView(Made):
    """A new view of a CPU tensor from outside.

    Attributes:
        base: that tensor.
        view: its geometry, with the distance from the beginning of the base as its offset.
    """

    base: Description
    view: View

    def make(self, outputs: Outputs) -> torch.Tensor:
        base = self.base.build(outputs)
        size, stride, distance = self.view
        made = base.as_strided(size, stride, base.storage_offset() + distance)
        return self.typed(made)


@dataclass(eq=False)
class HostArray(OnHost):
    """A NumPy array that owns its memory, of which each call creates a copy.

    Attributes:
        array: the array, of the trace.
        within: as in `HostMemory`.
    """

    array: np.ndarray
    within: "tuple[Description, int] | None" = None
    shared = True

    def anew(self, outputs: Outputs) -> Any:
        if self.within is not None:
            return _viewing(self.array, *self.within, outputs)
        made = self.array.copy(order="K")
        made.flags.writeable = self.array.flags.writeable
        return made


@dataclass(eq=False)
class HostBytes(OnHost):
    """A bytearray, of which each call creates a copy.

    Attributes:
        value: the bytearray, of the trace.
        within: as in `HostMemory`.
    """

    value: bytearray
    within: "tuple[Description, int] | None" = None
    shared = True

    def anew(self, outputs: Outputs) -> bytearray:
        return type(self.value)(self.value)


@dataclass(eq=False)
class ArrayView(Made):
    """A NumPy array over memory that belongs to another array or to a tensor.

    Attributes:
        memory: the array, the tensor, or its storage.
        array: the array, of the trace.
        distance: its distance from the beginning of the memory, in bytes.
    """

    memory: Description
    array: np.ndarray
    distance: int

    def make(self, outputs: Outputs) -> Any:
        return _viewing(self.array, self.memory, self.distance, outputs)


def _viewing(like: np.ndarray, whose: Description, distance: int, outputs: Outputs) -> Any:
    owner = whose.build(outputs)
    if isinstance(owner, torch.Tensor):
        distance += int(owner.storage_offset()) * owner.element_size()
        owner = owner.untyped_storage()
    hidden = isinstance(owner, np.ndarray) and owner.base is None and not owner.flags.writeable
    if hidden and like.flags.writeable:  # the view was made before its owner became read-only
        owner.flags.writeable = True
    memory = owner if isinstance(owner, bytearray) else _bytes_of(owner)
    made = np.ndarray(like.shape, like.dtype, memory, distance, like.strides)
    if hidden:
        owner.flags.writeable = False
    made.flags.writeable = like.flags.writeable
    return made


def _bytes_of(memory: Any) -> np.ndarray:
    """Returns the bytes of an array, a storage or a bytearray, in their order in memory."""
    if isinstance(memory, bytearray):
        return np.frombuffer(memory, np.uint8)
    if isinstance(memory, torch.UntypedStorage):
        return torch.empty(0, dtype=torch.uint8).set_(memory).numpy()
    order = sorted(range(memory.ndim), key=lambda axis: -memory.strides[axis])
    return memory.transpose(order).reshape(-1).view(np.uint8)


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


def _address_of(value: bytearray) -> int:
    return np.frombuffer(value, np.uint8).ctypes.data


def _is_whole(array: np.ndarray) -> bool:
    """Returns True if an array has all bytes of its memory, each once."""
    first, last = _range_of(array)
    return last - first == array.nbytes and all(stride >= 0 for stride in array.strides)


def is_on_host(value: object) -> bool:
    """Returns True for a CPU tensor."""
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


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

    def itself(self, value: torch.Tensor) -> Description:
        """Returns the description of a tensor of the trace that serves only one call, which then
        gets all values of the trace on the host.
        """
        self._whole = True
        return Constant(value)

    def settle(self) -> None:
        """Finish; nothing more may be described."""
        for made, value in self._made if self._whole else ():
            made.original = value

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
        elif outer := next(((b, a) for a, z, b in blocks if a <= first and last <= z), None):
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
