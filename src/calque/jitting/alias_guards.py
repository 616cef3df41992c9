"""Guards about memory: which arguments and state tensors share storages."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch

from calque.device.memory.cell import Cell
from calque.jitting.implicit_arguments import Implicit, form
from calque.program.signature import arrangement
from calque.program.trees import is_tensor

Leaves = list[Any]


class PinnedGuard:
    """Guards that the same arguments as before belong to the function's own state.

    Args:
        pinned: their cells and storage offsets, by index.
        hosts: the CPU tensors among them, with their indexes.
    """

    guarded = "which arguments belong to the state"

    def __init__(
        self,
        pinned: Mapping[int, tuple[Cell, int]],
        hosts: Sequence[tuple[int, torch.Tensor]],
    ) -> None:
        self._pinned = pinned
        self._hosts = hosts
        self._failed = 0

    def holds_for(self, leaves: Leaves, given: object) -> bool:
        """Returns True if the same arguments belong to the state."""
        for index, (cell, offset) in self._pinned.items():
            leaf = leaves[index]
            if leaf.untyped_storage().cell is not cell or leaf.storage_offset() != offset:
                self._failed = index
                return False
        for index, tensor in self._hosts:
            if not leaves[index].is_set_to(tensor):
                self._failed = index
                return False
        return True

    def why(self) -> str:
        """Returns what differs."""
        return f"argument {self._failed} belonged to the function's own state before"


class StorageGuard:
    """Guards the positions of arguments in their storages, if the function reads them.

    Args:
        forms: the result of `form` for each, by index.
    """

    guarded = "positions of arguments in their storages"

    def __init__(self, forms: Mapping[int, Any]) -> None:
        self._forms = forms
        self._failed = 0

    def holds_for(self, leaves: Leaves, given: object) -> bool:
        """Returns True if the positions are unchanged."""
        for index, expected in self._forms.items():
            if form(leaves[index]) != expected:
                self._failed = index
                return False
        return True

    def why(self) -> str:
        """Returns what differs."""
        return (
            f"argument {self._failed} has another position in its storage, or a storage of "
            "another shape, and the function reads that"
        )


class SharingGuard:
    """Guards that implicit arguments exist in the same form, and share storages as before.

    Args:
        sources: the sources of the leaves.
        expected: which of them share storages, or are one tensor.
        pinned: the cells of arguments that are part of the state.
        state: the cells of the state.
        writes: whether the program writes to anything.
        others: the tensors that the leaves must not be, by id; None if the function cannot tell
            which tensors it has.
    """

    guarded = "tensors that the function rebinds, and shared memory"

    def __init__(
        self,
        sources: Sequence[Implicit],
        expected: Any,
        pinned: Mapping[int, tuple[Cell, int]],
        state: Set[Cell],
        writes: bool,
        others: Mapping[int, torch.Tensor] | None,
    ) -> None:
        self._others = others
        self._sources = sources
        self._arrangement = expected
        self._pinned = {cell for cell, _ in pinned.values()}
        self._state = state
        self._writes = writes
        self._reason = ""

    def holds_for(self, leaves: Leaves, given: object) -> bool:
        """Returns True if they do, and if nothing else shares the memory that the program writes
        to.
        """
        found: list[Any] = []
        for source in self._sources:
            own = source.find(leaves)
            if own is None:
                self._reason = source.why()
                return False
            found += own
        if found and self._others is not None and not self._is_apart(found, leaves):
            self._reason = "a tensor that the function rebinds now is another one of its state, too"
            return False
        if not self._writes:
            # Which of several tensors is returned or kept is known only of an equal arrangement.
            tells = bool(self._arrangement) or self._others is not None
            if not tells and _are_apart(found):
                return True
            if tells and arrangement(found) == self._arrangement:
                return True
            self._reason = "tensors of the function's own state shared memory before"
            return False
        arguments = cells_in(leaves)
        implicit = cells_in(found)
        if not self._state.isdisjoint((arguments - self._pinned) | implicit):
            self._reason = "an argument shares memory with the function's own state"
            return False
        if found and (
            not implicit.isdisjoint(arguments) or arrangement(found) != self._arrangement
        ):
            self._reason = "tensors of the function's own state share memory"
            return False
        return True

    def _is_apart(self, found: Leaves, leaves: Leaves) -> bool:
        """Returns True if none of the tensors is another one of the state or an argument."""
        ids = set(map(id, found))
        return ids.isdisjoint(self._others or ()) and ids.isdisjoint(map(id, leaves))

    def why(self) -> str:
        """Returns what differs."""
        return self._reason


def _are_apart(leaves: Leaves) -> bool:
    """Returns True if no two of the leaves are one tensor, which code may tell without `is`
    (`len({p.grad, q.grad})`).
    """
    tensors = [id(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return len(set(tensors)) == len(tensors)


def cells_in(leaves: Leaves) -> set[Cell]:
    """Returns the cells of the tensors of the device among leaves."""
    return {leaf.untyped_storage().cell for leaf in leaves if is_tensor(leaf)}
