"""The sources of a program's inputs in each call: a class for each kind.

Two sources are equal if they find the same array in each call. A new kind of input needs only a new
class, here or next to the code that creates it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from calque.device.memory import rng
from calque.device.memory.cell import Cell, read
from calque.device.memory.host import host_array
from calque.program.view_arguments import unrepeated

Leaves = Sequence[Any]
"""The leaves of the arguments of one call."""


class Source:
    """The source of one input of a program.

    Attributes:
        heading: the heading for such inputs in `describe`.
        is_late: whether the array is read inside the call's turn, because another thread may change
            it before; reading other inputs may run user code.
        is_number: whether it is passed as a NumPy array instead of a JAX array.
    """

    __slots__ = ()

    heading: ClassVar[str] = ""
    is_late: ClassVar[bool] = False
    is_number: ClassVar[bool] = False

    def array(self, leaves: Leaves) -> Any:
        """Returns the array for a call with these leaves of its arguments.

        Raises:
            LookupError: the input does not belong to the forward pass, and the caller has the
                array.
        """
        raise LookupError(f"{self} is not among the arguments of a call")

    @property
    def memory(self) -> Cell | int | None:
        """The owner of the memory on the device: a cell, the index of an argument, or None."""
        return None

    @property
    def name(self) -> str:
        """Its name in the user's program, if the source has one."""
        return ""


@dataclass(frozen=True, slots=True)
class CellSource(Source):
    """A tensor of the function's own state."""

    cell: Cell
    heading = "state"

    def array(self, leaves: Leaves) -> Any:
        """Returns the value of the cell."""
        return self.cell.array

    @property
    def memory(self) -> Cell:
        """The cell."""
        return self.cell


@dataclass(frozen=True, slots=True)
class _OnDevice(Source):
    """A leaf of the arguments that is on the device.

    Attributes:
        index: the index of the leaf.
    """

    index: int
    is_late = True

    @property
    def memory(self) -> int:
        """The index."""
        return self.index


@dataclass(frozen=True, slots=True)
class ArgumentSource(_OnDevice):
    """An argument."""

    heading = "arguments"

    def array(self, leaves: Leaves) -> Any:
        """Returns the value of the tensor."""
        return read(leaves[self.index])


@dataclass(frozen=True, slots=True)
class UnrepeatedSource(_OnDevice):
    """An argument without its repetitions (axes of stride 0)."""

    heading = "arguments"

    def array(self, leaves: Leaves) -> Any:
        """Returns the value of the tensor, each element once."""
        return read(unrepeated(leaves[self.index]))


@dataclass(frozen=True, slots=True)
class StorageSource(_OnDevice):
    """The whole storage of an argument, or of an implicit one."""

    heading = "state, looked up at each call"

    def array(self, leaves: Leaves) -> Any:
        """Returns the array of the storage."""
        return leaves[self.index].untyped_storage().cell.array


class OnHost(Source):
    """A CPU tensor, whose value is read in each call."""

    __slots__ = ()
    heading = "CPU tensors, read at each call"


@dataclass(frozen=True, slots=True, eq=False)
class HostSource(OnHost):
    """A CPU tensor that the function reaches on its own."""

    tensor: torch.Tensor

    def __eq__(self, other: object) -> bool:
        return type(other) is HostSource and self.tensor is other.tensor

    def __hash__(self) -> int:
        return id(self.tensor)

    def array(self, leaves: Leaves) -> Any:
        """Its value."""
        return host_array(self.tensor)


@dataclass(frozen=True, slots=True)
class HostArgumentSource(OnHost):
    """An argument that is on the CPU."""

    index: int

    def array(self, leaves: Leaves) -> Any:
        """Its value."""
        return host_array(leaves[self.index])


@dataclass(frozen=True, slots=True)
class NumberSource(Source):
    """A Python number, such as the learning rate in an optimizer's param group.

    Attributes:
        number: returns it.
        key: its name in the user's program.
    """

    number: Callable[[], float]
    key: str
    heading = "hyper-parameters"
    is_number = True

    def array(self, leaves: Leaves) -> Any:
        """Returns the number in 64 bits."""
        return np.float64(self.number())

    @property
    def name(self) -> str:
        """The key."""
        return self.key


@dataclass(frozen=True, slots=True)
class RandomSource(Source):
    """The random state of the device: its seed and offset."""

    heading = "random state"
    is_late = True
    is_number = True

    def array(self, leaves: Leaves) -> Any:
        """Returns the current state, packed."""
        return rng.pack(rng.state.seed, rng.state.offset)


@dataclass(frozen=True, slots=True)
class KeySource(Source):
    """The random key that the caller of a pure function passes."""


@dataclass(frozen=True, slots=True)
class IncomingSource(Source):
    """The incoming gradient of a result, in the backward pass.

    Attributes:
        slot: the index of the result among those that have a graph.
    """

    slot: int


@dataclass(frozen=True, slots=True)
class GivenSource(Source):
    """An incoming gradient of a backward pass whose gradients are differentiated again.

    Attributes:
        depth: the number of derivatives taken before.
        place: the index of the gradient among the incoming ones.
    """

    depth: int
    place: int
