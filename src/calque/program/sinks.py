"""The destinations of a program's first outputs: a class for each kind of memory.

A `Source` says where an input comes from in each call, a `Sink` where an output goes. If both refer
to the same memory, the program may reuse the input's memory for the output (donation). For results
that a call returns, see `results`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from jax import Array
from jax.sharding import Sharding

from calque.device.memory.cell import Cell, cell_of, is_whole, write
from calque.program.sources import Leaves
from calque.program.view_arguments import unrepeated
from calque.upstream import torch_c


@dataclass(frozen=True, slots=True)
class Sink:
    """The destination of one output of a program.

    Attributes:
        placement: the placement of the array that the output replaces.
    """

    placement: Sharding | None = field(default=None, compare=False, kw_only=True)
    heading: ClassVar[str] = ""

    @property
    def memory(self) -> Cell | int | None:
        """The owner of the memory on the device: a cell, the index of an argument, or None."""
        return None

    def target(self, leaves: Leaves) -> Cell:
        """Returns the cell that gets the array; an unused one if `store` writes everything."""
        raise NotImplementedError

    def store(self, leaves: Leaves, array: Array) -> None:
        """Complete the write after the cell has the array."""


@dataclass(frozen=True, slots=True)
class CellSink(Sink):
    """A tensor of the function's own state, whose cell gets the array."""

    cell: Cell
    heading = "state"

    @property
    def memory(self) -> Cell:
        """The cell."""
        return self.cell

    def target(self, leaves: Leaves) -> Cell:
        """Returns the cell."""
        return self.cell


@dataclass(frozen=True, slots=True)
class StorageSink(Sink):
    """The whole storage of an argument.

    Attributes:
        index: the index of the argument.
    """

    index: int
    heading = "arguments"

    @property
    def memory(self) -> int:
        """The index."""
        return self.index

    def target(self, leaves: Leaves) -> Cell:
        """Returns the cell of the storage."""
        return cell_of(leaves[self.index])

    def store(self, leaves: Leaves, array: Array) -> None:
        """Increment the version."""
        torch_c.increment_version([leaves[self.index]])


@dataclass(frozen=True, slots=True)
class ArgumentSink(StorageSink):
    """An argument, which may be part of its storage."""

    def target(self, leaves: Leaves) -> Cell:
        """Returns the cell of its storage, if it covers the whole storage."""
        cell, tensor = cell_of(leaves[self.index]), unrepeated(leaves[self.index])
        if cell.viewed and not is_whole(cell, tensor):
            return nowhere()
        return cell

    def store(self, leaves: Leaves, array: Array) -> None:
        """Write to its part of the storage, and increment the version."""
        write(unrepeated(leaves[self.index]), array)
        torch_c.increment_version([leaves[self.index]])


def nowhere() -> Cell:
    """Returns an unused cell."""
    return Cell(None)  # type: ignore[arg-type]


def targets(sinks: Sequence[Sink], leaves: Leaves) -> list[Any]:
    """Returns the cells to which a program's first outputs are written."""
    return [sink.target(leaves) for sink in sinks]
