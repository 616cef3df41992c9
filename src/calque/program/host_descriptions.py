"""What each call creates on the host: memory, CPU tensors, NumPy arrays and other buffers."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calque.device.memory.geometry import View
from calque.program.results import Description, Leaf, Made, Outputs


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


@dataclass(eq=False)
class BufferView(Made):
    """A memoryview of the contiguous memory of another object.

    Attributes:
        owner: the object.
        view: the memoryview, of the trace.
        distance: its distance from the beginning of the memory, in bytes.
    """

    owner: Description
    view: memoryview
    distance: int = 0
    shared = True

    def make(self, outputs: Outputs) -> memoryview:
        view: Any = self.view
        made = memoryview(self.owner.build(outputs)).cast("B")
        made = made[self.distance : self.distance + view.nbytes]
        if view.format != "B" or view.ndim != 1:
            made = made.cast(view.format, view.shape)
        return made.toreadonly() if view.readonly else made


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
