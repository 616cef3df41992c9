"""The tensors from outside that a trace encounters, with their state before the function ran."""

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from calque.device.memory.cell import Cell, cell_of, read, view_of, write
from calque.device.memory.geometry import View
from calque.errors import TraceError, unrepeatable
from calque.jitting.autograd_history import Histories
from calque.program.gradients.graph_boundary import has_graph, is_leaf, origin_of
from calque.program.trees import is_tensor
from calque.upstream import torch_c

Tensor = torch.Tensor
_MODES = torch_c.DispatchKeySet(torch_c.DispatchKey.Python)


class Before(NamedTuple):
    """The state of a leaf before the function ran.

    Attributes:
        gradient: its `.grad`.
        requires_grad: its `requires_grad`.
        alias: a tensor that shares its data.
        cell: its memory.
    """

    gradient: Tensor | None
    requires_grad: bool
    alias: Tensor
    cell: Cell


class Computed(NamedTuple):
    """The state of a tensor that is not a leaf before the function ran.

    Attributes:
        origin: the autograd node that computed it (see `origin_of`).
        cell: its memory.
        view: its geometry.
    """

    origin: Any
    cell: Cell
    view: View


def uses_old_memory() -> TraceError:
    """Returns the error for a tensor over the memory that another had before `.data = `."""
    return unrepeatable(
        "the data of a tensor from outside is replaced (`.data = `) inside calque.jit, while "
        "another tensor uses its old memory,",
        "into which each call of the program would write the new values",
        "Write them with `tensor.data.copy_(values)`, and keep the old ones with `clone()`.",
    )


def _has_other_form(before: Tensor, after: Tensor) -> TraceError:
    forms = [f"shape {tuple(one.shape)} and dtype {one.dtype}" for one in (before, after)]
    return unrepeatable(
        f"the data of a tensor of {forms[0]} from outside is replaced (`.data = `) inside "
        f"calque.jit by data of {forms[1]},",
        "while each call writes into the memory that the tensor has",
        "Replace it outside the jitted function, or assign a new tensor in its place.",
    )


class KnownTensors:
    """The leaves among these tensors.

    Args:
        histories: handles the tensors that are not leaves.

    Attributes:
        tensors: the leaves, by id.
        before: their state before the function ran.
        computed: the tensors that are not leaves, by id, with their state.
        aliases: leaves created in the trace over storages from outside.
        given: leaves to which the function assigned a different gradient, by id.
        moved: the memory that the function replaced by other.
    """

    def __init__(self, histories: Histories) -> None:
        self.tensors: dict[int, Tensor] = {}
        self.before: dict[int, Before] = {}
        self.computed: dict[int, tuple[Tensor, Computed]] = {}
        self.aliases: dict[int, Tensor] = {}
        self.given: set[int] = set()
        self.moved: weakref.WeakSet[Cell] = weakref.WeakSet()
        self._histories = histories

    def know(self, tensor: Tensor) -> None:
        """Store the state of a tensor before the function can change it."""
        if id(tensor) in self.tensors or tensor.device.type != "jax":
            return
        self._histories.know(tensor)
        if not is_leaf(tensor):
            if has_graph(tensor) and id(tensor) not in self.computed:
                now = Computed(origin_of(tensor), cell_of(tensor), view_of(tensor))
                self.computed[id(tensor)] = tensor, now
            return
        with torch_c.DisableTorchFunction(), torch_c.ExcludeDispatchKeyGuard(_MODES):
            alias = tensor.detach()
        before = Before(tensor.grad, tensor.requires_grad, alias, cell_of(tensor))
        self.before[id(tensor)] = before  # first, because an interrupt may come in between
        self.tensors[id(tensor)] = tensor

    def gradients(self) -> dict[int, Tensor | None]:
        """Returns the gradients that existed before, by the id of their tensor."""
        return {key: before.gradient for key, before in self.before.items()}

    def forget_aliases(self, outside: dict[int, Tensor]) -> None:
        """Release tensors that were created in the trace over storages from outside.

        Calls do not find them again. Their attributes (a gradient, a flag) are lost with them, or
        are part of the function's result.

        Args:
            outside: the tensors from outside, by id.
        """
        cells = {cell_of(t) for t in outside.values() if is_tensor(t)}
        for key in [k for k, t in self.tensors.items() if k not in outside and cell_of(t) in cells]:
            self.aliases[key] = self.tensors.pop(key)
            del self.before[key]
        self._histories.forget(self.aliases)

    def undo_data(self, outside: dict[int, Tensor]) -> Iterable[tuple[Tensor, bool]]:
        """Undo the function's `p.data = x` and `p.requires_grad_()`, which each call repeats.

        A call writes the new values into the old memory, so no other tensor may use that.

        Args:
            outside: the tensors from outside, by id.

        Returns:
            The tensors whose flag was changed, with the new flags.

        Raises:
            TraceError: the new data has a different shape or dtype, or another tensor uses the old.
        """
        moved = [k for k, t in self.tensors.items() if cell_of(t) is not self.before[k].cell]
        self._check_alone(moved, outside)
        # Read all first, because two may have been swapped.
        values = [read(self.tensors[key]) for key in moved]
        for key, value in zip(moved, values, strict=True):
            tensor, alias = self.tensors[key], self.before[key].alias
            if tensor.shape != alias.shape or tensor.dtype != alias.dtype:
                raise _has_other_form(alias, tensor)
            tensor.data = alias
            write(tensor, value)
        flags = []
        for key, tensor in self.tensors.items():
            before = self.before[key]
            if tensor.requires_grad != before.requires_grad and is_leaf(tensor):
                flags.append((tensor, tensor.requires_grad))
                tensor.requires_grad_(before.requires_grad)
        return flags

    def _check_alone(self, moved: list[int], outside: dict[int, Tensor]) -> None:
        """Raise TraceError if another tensor from outside uses the old memory of one that the
        function gave new memory.
        """
        self.moved.update(self.before[key].cell for key in moved)
        others = (t for key, t in outside.items() if key not in moved) if moved else ()
        if any(is_tensor(t) and cell_of(t) in self.moved for t in others):
            raise uses_old_memory()

    def restore(self) -> None:
        """Restore the state before the trace."""
        for key, tensor in self.tensors.items():
            before = self.before[key]
            if cell_of(tensor) is not before.cell:
                tensor.data = before.alias
            if tensor.requires_grad != before.requires_grad:
                tensor.requires_grad_(before.requires_grad)
            if tensor.grad is not before.gradient:
                tensor.grad = before.gradient
