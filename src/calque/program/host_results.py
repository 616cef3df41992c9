"""Descriptions of CPU tensors and NumPy arrays that a traced function creates and leaves behind.

Those that share memory in the trace share it in each call, too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calque.device.memory.geometry import View
from calque.program.gradients.graph_boundary import has_graph
from calque.program.results import Constant, Copied, Description, Leaf, Made, Outputs
from calque.upstream import torch_c


@dataclass(eq=False)
class HostMemory(Made):
    """Memory of CPU tensors, of which each call creates a copy."""

    storage: torch.UntypedStorage
    shared = True

    def make(self, outputs: Outputs) -> torch.UntypedStorage:
        return self.storage.clone()


@dataclass(eq=False)
class HostTensor(Made):
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

    def make(self, outputs: Outputs) -> torch.Tensor:
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
class HostArray(Made):
    """A NumPy array that owns its memory, of which each call creates a copy."""

    array: np.ndarray
    shared = True

    def make(self, outputs: Outputs) -> Any:
        return self.array.copy(order="K")


@dataclass(eq=False)
class ArrayView(Made):
    """A NumPy array over memory that belongs to another array or to a tensor.

    Attributes:
        memory: the memory.
        array: the array, of the trace.
        distance: its distance from the beginning of the memory, in bytes.
    """

    memory: HostArray | HostMemory | Constant
    array: np.ndarray
    distance: int

    def make(self, outputs: Outputs) -> Any:
        memory, like = self.memory.build(outputs), self.array
        if isinstance(memory, torch.UntypedStorage):
            memory = torch.empty(0, dtype=torch.uint8).set_(memory).numpy()
        elif not memory.flags.c_contiguous:
            memory = memory.T
        made = np.ndarray(like.shape, like.dtype, memory, self.distance, like.strides)
        made.flags.writeable = like.flags.writeable
        return made


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
    return tensor.device.type == "cpu" and not tensor.is_conj() and not tensor.is_neg()


class HostResults:
    """Describes what a trace has created on the host.

    Args:
        is_known: returns True for an object that existed before the trace.
    """

    def __init__(self, is_known: Callable[[Any], bool]) -> None:
        self._is_known = is_known
        self._memory: dict[int, HostMemory | HostArray] = {}
        self._kept: list[Any] = []  # keeps ids unique

    def tensor(
        self,
        value: torch.Tensor,
        outside: tuple[Description, torch.Tensor] | None,
        leaf: Leaf | None,
    ) -> Description:
        """Returns the description of a CPU tensor.

        Args:
            outside: a CPU tensor from outside over the same memory, with its description; None if
                there is none.
            leaf: its properties as an autograd leaf.
        """
        size, stride = tuple(value.shape), tuple(value.stride())
        if outside is None:
            view = View(size, stride, int(value.storage_offset()))
            return HostTensor(self._memory_of(value), value.dtype, view, leaf)
        place, base = outside
        if base.dtype != value.dtype:
            return Copied(value)
        distance = int(value.storage_offset() - base.storage_offset())
        return HostView(place, View(size, stride, distance))

    def _memory_of(self, value: torch.Tensor) -> HostMemory:
        storage = value.untyped_storage()
        key = storage._cdata
        if key not in self._memory:
            self._kept.append(storage)
            self._memory[key] = HostMemory(storage)
        found = self._memory[key]
        assert isinstance(found, HostMemory)
        return found

    def array(self, value: np.ndarray) -> Description:
        """Returns the description of a NumPy array."""
        root: Any = value
        while isinstance(root, np.ndarray) and root.base is not None:
            root = root.base
        if value.dtype.hasobject or type(value) is not np.ndarray:
            return Copied(value)
        if isinstance(root, torch.Tensor) and root.device.type == "cpu":
            storage = root.untyped_storage()
            distance = value.ctypes.data - storage.data_ptr()
            return ArrayView(self._memory_of(root), value, distance)
        if type(root) is not np.ndarray or root.dtype.hasobject:
            return Copied(value)
        if self._is_known(root):
            return ArrayView(Constant(root), value, value.ctypes.data - root.ctypes.data)
        known = self._memory.get(id(root))
        if known is None:
            self._kept.append(root)
            known = self._memory[id(root)] = HostArray(root)
        assert isinstance(known, HostArray)
        if root is value:
            return known
        return ArrayView(known, value, value.ctypes.data - root.ctypes.data)
