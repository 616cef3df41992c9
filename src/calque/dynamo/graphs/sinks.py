"""The inputs that a graph writes to."""

from dataclasses import dataclass
from typing import Any

import torch
from jax import Array
from jax.sharding import Sharding

from calque.device.memory.cell import Cell, active, cell_of, is_whole, write
from calque.device.memory.geometry import Ints
from calque.device.runtime.placement import placement_of
from calque.program.shared_memory import tensor_over
from calque.program.sinks import Sink, nowhere
from calque.program.sources import Leaves
from calque.upstream import torch_c

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class InputSink(Sink):
    """A written input on the device, which may be part of its storage.

    Attributes:
        index: the input's index.
        order: the order of axes in which the program takes it; None for the tensor's own.
        is_replaced: whether the program may reuse its memory.
    """

    index: int
    order: Ints | None
    is_replaced: bool
    heading = "arguments"

    @property
    def memory(self) -> int | None:
        """The index, if the program may reuse the memory."""
        return self.index if self.is_replaced else None

    def target(self, leaves: Leaves) -> Cell:
        """Returns the cell of its storage, if it covers the storage."""
        tensor = leaves[self.index]
        if active.trace is None:
            cell = cell_of(tensor)
            if not cell.viewed or is_whole(cell, ordered(tensor, self.order)):
                return cell
        return nowhere()

    def store(self, leaves: Leaves, array: Array) -> None:
        """Write the array if necessary, and increment the version."""
        tensor = leaves[self.index]
        if cell_of(tensor).array is not array:
            write(ordered(tensor, self.order), array)
        torch_c.increment_version([tensor])


@dataclass(frozen=True, slots=True)
class HostSink(Sink):
    """A written input on the CPU. XLA does not write to memory that is not its own.

    Attributes:
        index: the input's index.
        order: the order of axes in which the program takes it; None for the tensor's own.
    """

    index: int
    order: Ints | None
    heading = "arguments"

    def target(self, leaves: Leaves) -> Cell:
        """Returns a cell that nothing reads."""
        return nowhere()

    def store(self, leaves: Leaves, array: Array) -> None:
        """Copy the array to the input."""
        ordered(leaves[self.index], self.order).copy_(tensor_over(array))


def ordered(tensor: Tensor, order: Ints | None) -> Tensor:
    """Returns a tensor in the form in which it is passed to a program."""
    return tensor if order is None else tensor.detach().permute(order)


def placement_of_tensor(value: Any) -> Sharding | None:
    """Returns the placement of a device tensor's storage."""
    on_device = isinstance(value, Tensor) and value.device.type == "jax"
    return placement_of(cell_of(value).array) if on_device else None
