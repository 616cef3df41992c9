"""`t[k]` with a one-element integer tensor `k`: PyTorch reads its value, which a trace lacks.

PyTorch returns a view. Here, a gathered copy is kept in sync: writes to it are copied to the
tensor, and it is gathered again after the tensor is written to.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calque.device.memory.cell import Cell, cell_of, current
from calque.federated.constants import written_constant

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
_MASKS = (torch.bool, torch.uint8)


@dataclass
class _Element:
    """An element of a tensor, and the values of both when they were last equal."""

    tensor: torch.Tensor
    index: Any
    copy: torch.Tensor
    cells: tuple[Cell, Cell]
    arrays: tuple[Any, Any]
    constant: bool = False


class Elements:
    """The elements that a program has indexed by tensors with unknown values."""

    def __init__(self) -> None:
        self._all: list[_Element] = []

    def indexing(self, func: Callable[..., Any], args: Any) -> Callable[..., Any] | None:
        """Returns the replacement for a PyTorch call, if it uses such an index."""
        for own, does in (
            (torch.Tensor.__getitem__, self._get),
            (torch.Tensor.__setitem__, assign),
        ):
            if func == own and _unknown(args[0], args[1]) is not None:
                return does
        return None

    def hold_constant(self, tensors: list[torch.Tensor]) -> None:
        """Mark tensors whose elements must not be written to."""
        for one in self._all:
            one.constant |= any(one.tensor is tensor for tensor in tensors)

    def settle(self) -> None:
        """After a call, write changes of elements to their tensors, and vice versa."""
        for one in reversed(self._all):
            if current(one.cells[1]) is not one.arrays[1]:
                if one.constant:
                    raise written_constant()
                assign(one.tensor, one.index, one.copy)
                one.arrays = _arrays(one.cells)
        for one in self._all:
            if current(one.cells[0]) is not one.arrays[0]:
                one.copy.copy_(_gathered(one.tensor, one.index)[0])
                one.arrays = _arrays(one.cells)

    def _get(self, tensor: torch.Tensor, index: object) -> torch.Tensor:
        copy, is_view = _gathered(tensor, index)
        if is_view:
            cells = cell_of(tensor), cell_of(copy)
            self._all.append(_Element(tensor, index, copy, cells, _arrays(cells)))
        return copy


def assign(tensor: torch.Tensor, index: Any, value: Any) -> None:
    """Performs `tensor[index] = value`."""
    found = _unknown(tensor, index)
    if found is None:
        tensor[index] = value
        return
    dim, position, rest = found
    chosen = tensor.index_select(dim, position)
    assign(chosen, rest, value)
    tensor.index_copy_(dim, position, chosen)


def _gathered(tensor: torch.Tensor, index: Any) -> tuple[torch.Tensor, bool]:
    """Returns `tensor[index]` as a copy, and whether it would be a view of `tensor`."""
    chosen = tensor
    while (found := _unknown(chosen, index)) is not None:
        dim, position, index = found
        chosen = chosen.index_select(dim, position)
    copy = chosen[index]
    return copy, cell_of(copy) is cell_of(chosen)


def _unknown(tensor: Any, index: Any) -> tuple[int, torch.Tensor, Any] | None:
    """Returns the axis and position of the first index with an unknown value, if any.

    The third value is the index to apply to the result of `index_select`.
    """
    parts = index if isinstance(index, tuple) else (index,)
    axis = 0
    for place, part in enumerate(parts):
        if part is Ellipsis:
            axis += tensor.dim() - sum(_axes_of(one) for one in parts if one is not Ellipsis)
        elif _is_unknown(part) and 0 <= axis < tensor.dim():
            position = part.reshape(1).long()
            position = torch.where(position < 0, position + tensor.shape[axis], position)
            return axis, position, (*parts[:place], 0, *parts[place + 1 :])
        else:
            axis += _axes_of(part)
    return None


def _is_unknown(part: object) -> bool:
    if not (isinstance(part, torch.Tensor) and part.device.type == "jax" and part.dim() == 0):
        return False
    return part.dtype in _INTEGERS


def _axes_of(part: object) -> int:
    """Returns the number of axes that a part of an index covers."""
    if part is None or isinstance(part, bool):
        return 0
    if isinstance(part, torch.Tensor):
        return part.dim() if part.dtype in _MASKS else 1
    if isinstance(part, list | np.ndarray):
        masks = np.asarray(part)
        return masks.ndim if masks.dtype == np.bool_ else 1
    return 1


def _arrays(cells: tuple[Cell, Cell]) -> tuple[Any, Any]:
    return current(cells[0]), current(cells[1])
