"""The arguments with which a traced function is called."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from calque.device.memory.cell import Cell, cell_of, is_whole, read
from calque.jitting.autograd_history import entered
from calque.jitting.implicit_arguments import form
from calque.jitting.state_arguments import SharesState
from calque.program.results import Inseparable
from calque.program.trees import is_tensor
from calque.program.view_arguments import OutsideWindow, ViewWindows, unrepeated, window_of
from calque.upstream import torch_c


class Arguments:
    """The arguments of one trace.

    Args:
        leaves: the leaves of the call's arguments.
        own: the cells of the function's own state that are known before it runs.
        with_storage: the arguments that must be passed with their whole storage.

    Attributes:
        stand_ins: the values passed to the function for each leaf, followed by the implicit ones.
        indexes: the index of the argument to which each cell belongs.
        pinned: arguments that are part of the state, with their cells and offsets.
        stored: arguments passed with their whole storage, with their positions in it.
        windows: the other arguments that are views.
        replaced: the ids of the leaves for which the function gets another tensor.
    """

    def __init__(
        self, leaves: list[Any], own: Collection[Cell], with_storage: Collection[int]
    ) -> None:
        self.indexes: dict[Cell, int] = {}
        self.pinned: dict[int, tuple[Cell, int]] = {}
        self.stored: dict[int, Any] = {}
        self.windows: ViewWindows = ViewWindows()
        self._own = own
        self._count = len(leaves)
        self._held_elsewhere = _held_elsewhere(leaves)
        self._with_storage = with_storage
        self._groups: dict[Cell, list[int]] = {}
        self.stand_ins: list[Any] = [
            self._stand_in(index, leaf) for index, leaf in enumerate(leaves)
        ]
        self.replaced: set[int] = set()
        for leaf, stand_in in zip(leaves, self.stand_ins):
            if stand_in is not leaf:
                vars(stand_in).update(vars(leaf))
                self.replaced.add(id(leaf))

    def _stand_in(self, index: int, leaf: Any) -> Any:
        if not is_tensor(leaf):
            return leaf
        cell = cell_of(leaf)
        if cell in self._own:
            self.pinned[index] = cell, leaf.storage_offset()
            return leaf
        self._groups.setdefault(cell, []).append(index)
        if is_whole(cell, leaf) and leaf.is_leaf:
            self.indexes.setdefault(cell, index)
            return leaf
        has_gradient = leaf.is_leaf and leaf.grad is not None
        alone = index not in self._with_storage and not has_gradient
        window = window_of(read(unrepeated(leaf)), leaf) if alone else None
        if window is None:
            self.indexes.setdefault(cell, index)
            self.stored[index] = form(leaf)
            is_itself = leaf.is_leaf and (leaf.requires_grad or not leaf._is_view())
            return leaf if is_itself else entered(leaf.detach(), leaf)
        self.indexes[cell_of(window)] = self.windows.indexes[cell_of(window)] = index
        return entered(window, leaf)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A context manager for running the function.

        Raises:
            Inseparable: it needs more of an argument's storage than its window. This replaces any
                other exception.
        """
        with ExitStack() as stack:
            self.windows.watch(stack)
            try:
                yield
            except (Exception, OutsideWindow):
                self._check_asked()
                raise
            self._check_asked()

    def _check_asked(self) -> None:
        if asked := self.windows.asked:
            groups = [group for group in self._groups.values() if not asked.isdisjoint(group)]
            raise Inseparable(index for group in groups for index in group)

    def check_apart(self, state: Iterable[Tensor]) -> None:
        """Raise Joined if tensors of the state are arguments, or share memory with them.

        Tensors that the function creates from an argument share its memory too, and may look like
        state. They only count if a different tensor shared it before.
        """
        given = set(map(id, self.stand_ins))
        joined = {
            cell
            for tensor in state
            if is_tensor(tensor)
            and (cell := cell_of(tensor)) in self._groups
            and (id(tensor) in given or cell in self._held_elsewhere)
        }
        if joined:
            raise SharesState(joined)

    def check_separable(self, written: Collection[Cell]) -> None:
        """Raise Inseparable if a write to one argument would be visible in another, or in an
        implicit one.
        """
        implicit = {cell_of(one) for one in self.stand_ins[self._count :] if is_tensor(one)}
        for cell, indexes in self._groups.items():
            cells = {cell_of(self.stand_ins[i]) for i in indexes} | ({cell} & implicit)
            if len(cells) > 1 and not cells.isdisjoint(written):
                raise Inseparable(indexes)


def _held_elsewhere(leaves: list[Any]) -> set[Cell]:
    """Returns the memory of arguments that other tensors also use."""
    tensors = list({id(leaf): leaf for leaf in leaves if is_tensor(leaf)}.values())
    given = Counter(map(cell_of, tensors))
    storages = {cell_of(tensor): tensor.untyped_storage() for tensor in tensors}
    return {
        cell
        for cell, storage in storages.items()
        if torch_c.storage_use_count(storage._cdata) > given[cell] + 1  # plus the Python object
    }
