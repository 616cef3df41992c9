"""The arrays that a jitted program takes in a call, and the cells that it changes."""

from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import torch

from calque.device.memory.cell import Cell
from calque.program.call_serialization import PYTHON
from calque.program.lifting import Input
from calque.program.results import Existing

_array = attrgetter("array")
_place = itemgetter(0)
Call = tuple[list[Any], Sequence[tuple[int, Any]], Any, list[list[Any]]]
"""A call: the leaves of its arguments; the values found for them (see `Gathering.beforehand`); its
(args, kwargs), to whose containers the function may write; and a list for the arrays that its
program is passed, if derivatives of gradients need them.
"""


class Gathering:
    """Gathers the arrays of a call.

    Args:
        inputs: the program's inputs.
        keeps: whether the arrays are needed after the program has run.

    Attributes:
        early: inputs that are gathered before the call begins.
    """

    def __init__(self, inputs: Sequence[Input], keeps: bool = False) -> None:
        self._keeps = keeps
        sources = [one.source for one in inputs]
        memories = [source.memory for source in sources]
        self._cells = [memory for memory in memories if isinstance(memory, Cell)]
        self._arguments = [memory for memory in memories if isinstance(memory, int)]
        others = [(i, s) for i, s in enumerate(sources) if not isinstance(s.memory, Cell)]
        self._late = [(i, s.array) for i, s in others if s.is_late]
        self.early: list[tuple[int, Callable[[Sequence[Any]], Any]]] = [
            (i, s.array) for i, s in others if not s.is_late
        ]

    def beforehand(self, leaves: list[Any]) -> list[tuple[int, Any]]:
        """Gathers the inputs that are not on the device, which may run user code."""
        return [(place, source(leaves)) for place, source in self.early]

    def arrays(self, call: Call) -> list[Any]:
        """All arguments of the program."""
        leaves, beforehand, _, kept = call
        arrays: list[Any] = list(map(_array, self._cells))
        if beforehand:
            late = [(place, source(leaves)) for place, source in self._late]
            for place, array in sorted([*late, *beforehand], key=_place):
                arrays.insert(place, array)
        else:
            for place, source in self._late:
                arrays.insert(place, source(leaves))
        if self._keeps:
            kept[:] = [arrays]
        return arrays

    def cells(self, leaves: list[Any]) -> list[Cell]:
        """Returns the cells behind them."""
        return self._cells + [_cell_of(leaves[index]) for index in self._arguments]


class Changing:
    """Finds the cells that a call changes, including those of tensors whose gradient it assigns.

    Args:
        recording: the recording of the function.
    """

    def __init__(self, recording: Any) -> None:
        targets = [target for target, _ in recording.gradients]
        written = [sink.memory for sink in recording.sinks]
        cells = [one for one in written if isinstance(one, Cell)]
        cells += [cell for cell, _ in recording.survivors]
        cells += [_cell_of(one.tensor) for one in targets if isinstance(one, Existing)]
        python = (recording.effects, recording.rebound, recording.flags, recording.modes)
        if any(python) or recording.rewritten or recording.passed:
            cells.append(PYTHON)
        self._cells = list(dict.fromkeys(cells))
        self._arguments = [one for one in written if isinstance(one, int)]
        self._arguments += [one.index for one in targets if not isinstance(one, Existing)]

    @property
    def is_nothing(self) -> bool:
        """Returns True if no call changes anything."""
        return not (self._cells or self._arguments)

    def cells(self, leaves: list[Any]) -> list[Cell]:
        """Returns the distinct cells."""
        if not self._arguments:
            return self._cells
        found = [_cell_of(leaves[index]) for index in self._arguments]
        return list(dict.fromkeys(self._cells + found))


def _cell_of(tensor: torch.Tensor) -> Cell:
    return tensor.untyped_storage().cell  # type: ignore[attr-defined]
