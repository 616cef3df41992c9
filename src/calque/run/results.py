"""Describe what a traced function returned, so that each call of the program can make it anew."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jax import Array

from calque.device.cell import META, cell_of, view_of, wrap, wrap_strided
from calque.device.dtypes import to_torch
from calque.device.geometry import Ints, View, contiguous_strides
from calque.run.lifting import Lifting


@dataclass(frozen=True)
class Constant:
    """A Python value, or a CPU tensor or an array of numpy made in the trace."""

    value: Any

    def build(self, outputs: "Outputs") -> Any:
        if isinstance(self.value, torch.Tensor):
            return self.value.clone()
        return self.value.copy() if type(self.value) is np.ndarray else self.value


@dataclass(frozen=True)
class Existing:
    """A tensor from outside, returned as it is."""

    tensor: torch.Tensor

    def build(self, outputs: "Outputs") -> torch.Tensor:
        return self.tensor


@dataclass(frozen=True)
class Argument:
    """One of the call's own tensors."""

    index: int

    def build(self, outputs: "Outputs") -> torch.Tensor:
        return outputs.leaves[self.index]


@dataclass(frozen=True)
class Handed(Argument):
    """An argument that lies in its storage as in the trace: so do all that nobody passed."""


@dataclass(frozen=True)
class Fresh:
    """A tensor over a new storage.

    Attributes:
        output: which output of the program is the storage's array.
        stride: the strides of the storage's array; None for row-major.
        view: the tensor's geometry, if it does not see the whole storage; else None.
        dtype: the tensor's dtype.
    """

    output: int
    stride: Ints | None
    view: View | None
    dtype: torch.dtype

    def build(self, outputs: "Outputs") -> torch.Tensor:
        base = outputs.storages.get(self.output)
        if base is None:
            array = outputs.arrays[self.output]
            base = wrap(array) if self.stride is None else wrap_strided(array, self.stride)
            outputs.storages[self.output] = base
            if self.view is None:
                return base
        if self.view is None:
            return base.detach()
        return _over(base, self.view, self.dtype)


@dataclass(frozen=True)
class ViewOf:
    """A new view of a tensor from outside, or of an argument."""

    base: Existing | Argument
    view: View
    dtype: torch.dtype

    def build(self, outputs: "Outputs") -> torch.Tensor:
        base = self.base.build(outputs).detach()
        view = self.view
        if type(self.base) is Argument and (offset := base.storage_offset()):
            # The trace saw the argument at the start of its storage.
            moved = view.offset + offset * base.itemsize // self.dtype.itemsize
            view = View(view.size, view.stride, moved)
        return _over(base, view, self.dtype)


Description = Constant | Existing | Argument | Fresh | ViewOf


class Outputs:
    """The arrays of one call, and the storages made over them so far."""

    __slots__ = ("arrays", "leaves", "storages")

    def __init__(self, arrays: list[Array], leaves: list[Any]) -> None:
        self.arrays = arrays
        self.leaves = leaves
        self.storages: dict[int, torch.Tensor] = {}


def _over(base: torch.Tensor, view: View, dtype: torch.dtype) -> torch.Tensor:
    cell_of(base).viewed = True
    tensor = torch.empty(0, dtype=dtype, device="jax")
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
        META, tensor, base.untyped_storage(), view.offset, view.size, view.stride
    )
    return tensor


class Inseparable(Exception):
    """Arguments whose storage must be seen as a whole: the trace is to be made again so."""

    def __init__(self, indexes: Iterable[int]) -> None:
        self.indexes = frozenset(indexes)


class Describer:
    """Collects the arrays a traced function's results need, each storage once.

    Args:
        leaves: the tensors that stand for the call's arguments.
        pinned: those that are part of the state.
        stored: those that stand in their whole storage.
        count: how many were given by the call; the others are implicit.

    Attributes:
        arrays: the arrays, in the order of the program's outputs.
    """

    def __init__(
        self,
        lifting: Lifting,
        leaves: list[Any],
        handles: dict[Any, torch.Tensor],
        pinned: Collection[int],
        stored: Collection[int],
        count: int,
    ) -> None:
        self.lifting = lifting
        self.arrays: list[Array] = []
        self._outputs: dict[int, int] = {}
        self._arguments = {id(t): i for i, t in enumerate(leaves) if isinstance(t, torch.Tensor)}
        self._cells = {
            cell_of(t): i
            for i, t in reversed(list(enumerate(leaves)))
            if i not in pinned and isinstance(t, torch.Tensor) and t.device.type == "jax"
        }
        self._handles = handles
        self._stored = stored
        self._count = count

    def describe(self, value: Any) -> Description:
        """The description of one leaf of the result."""
        if not isinstance(value, torch.Tensor) or value.device.type != "jax":
            return self._describe_other(value)
        if id(value) in self._arguments:
            return self._argument(self._arguments[id(value)])
        value = value.resolve_conj().resolve_neg()
        cell = cell_of(value)
        if self.lifting.is_fresh(cell):
            return self._describe_fresh(value)
        index = self._cells.get(cell)
        if index is None and value.is_leaf and value._base is None:
            return Existing(value)
        base = Existing(self._handles[cell]) if index is None else self._argument(index)
        return ViewOf(base, view_of(value), value.dtype)

    def _argument(self, index: int) -> Argument:
        alone = index < self._count and index not in self._stored
        return Argument(index) if alone else Handed(index)

    def _describe_other(self, value: Any) -> Description:
        if id(value) in self._arguments:
            return self._argument(self._arguments[id(value)])
        if isinstance(value, torch.Tensor) and id(value) not in self.lifting.host_born:
            return Existing(value)
        return Constant(value)

    def _describe_fresh(self, value: torch.Tensor) -> Fresh:
        cell = cell_of(value)
        output = self._outputs.get(id(cell))
        if output is None:
            output = self._outputs[id(cell)] = self.add(cell.array)
        shape = cell.array.shape
        whole = View(shape, cell.stride or contiguous_strides(shape), 0)
        same = view_of(value) == whole and value.dtype == to_torch(cell.array.dtype)
        return Fresh(output, cell.stride, None if same else view_of(value), value.dtype)

    def add(self, array: Array) -> int:
        """Make an array an output of the program; gives its index."""
        self.arrays.append(array)
        return len(self.arrays) - 1
