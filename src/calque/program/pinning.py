"""The placements of a program's arrays. It is compiled for its arguments' placements, and fixes the
placements of the state that it writes.

If one argument of a program is sharded, the others must be on the same devices: state without a
placement is moved there once, arguments of a call each time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import jax
from jax.sharding import Sharding

from calque.device.memory.cell import Cell, cell_of
from calque.device.runtime.placement import (
    are_same,
    common,
    is_same,
    order_of,
    placed,
    placement_of,
    placements_of,
    spread,
)
from calque.program.call_serialization import set_array
from calque.program.jaxprs import constrained, every

Placements = list[Sharding | None]
_sharding_of = attrgetter("array.sharding")
_WHY = "a tensor of the state is spread over devices differently"


def settled(
    cells: Iterable[Cell], placements: Sequence[Sharding | None]
) -> tuple[Sharding | None, bool]:
    """Returns the placement for a program's arrays without one (None if no array has one), and
    whether state was moved.

    State without a placement gets it, because the program's new values have it anyway. State on
    other devices stays there (see `other_devices`).

    Args:
        cells: the cells of the state that the program reads or writes.
        placements: the placements of all its arguments.
    """
    whole = common(placements) if spread.exists else None
    if whole is None:
        return None, False
    moved = False
    for cell in cells:
        if placement_of(cell.array) is None:
            set_array(cell, placed(cell.array, whole))
            moved = True
    return whole, moved


def avals(
    inputs: Sequence[Any],
    placements: Placements,
    whole: Sharding | None,
    turned: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
) -> list[Any]:
    """Returns the abstract values for which a program is lowered.

    Args:
        inputs: the inputs, with shape, dtype and weak type.
        placements: the placements of the inputs.
        whole: see `settled`.
        turned: the inputs that are passed transposed, with their axis order.
    """
    shapes = [one.shape for one in inputs]
    for index, order in turned.items():
        shapes[index] = tuple(shapes[index][axis] for axis in order)
    return [
        jax.ShapeDtypeStruct(
            shape, one.dtype, weak_type=one.weak, sharding=within(placement, whole)
        )
        for shape, one, placement in zip(shapes, inputs, placements, strict=True)
    ]


def constraints(jaxpr: object) -> Placements:
    """Returns the placements to which a program constrains values."""
    if not spread.exists:
        return []
    return [
        equation.params["sharding"] for inner in every(jaxpr) for equation in constrained(inner)
    ]


def within(placement: Sharding | None, whole: Sharding | None) -> Sharding | None:
    """Returns the placement of an array in a program (see `settled`)."""
    if whole is None:
        return None
    is_there = placement is not None and order_of(placement) == order_of(whole)
    return placement if is_there else whole


def pinned(written: Placements, count: int, whole: Sharding | None) -> Any:
    """Returns the placements of a program's results, None if XLA chooses.

    Args:
        written: the placements of the results that replace state, which come first.
        count: the number of results.
        whole: see `settled`.
    """
    if whole is None:
        return None
    return [within(one, whole) for one in written] + [None] * (count - len(written))


class PlacementGuard:
    """Guards the placements of the state.

    Args:
        cells: the cells of the state.

    Attributes:
        cells: the cells.
    """

    guarded = "placements of the state"

    def __init__(self, cells: Iterable[Cell]) -> None:
        self.cells: list[Cell] = list(cells)
        arrays = [cell.array for cell in self.cells]
        self._shardings = [array.sharding for array in arrays]
        self._placements = placements_of(arrays)
        self._ndims = [array.ndim for array in arrays]

    def holds(self) -> bool:
        """Returns True if the placements are unchanged."""
        if not spread.exists:
            return True
        shardings = [*map(_sharding_of, self.cells)]
        if shardings != self._shardings:  # a list comparison checks identities first
            now = placements_of([cell.array for cell in self.cells])
            if not are_same(now, self._placements, self._ndims):
                return False
        self._shardings = shardings
        return True

    def why(self) -> str:
        """Returns what differs."""
        return _WHY


class FoundPlacementGuard:
    """Guards the placements of storages passed in addition to a call's arguments.

    Args:
        find: returns the storages for the leaves of a call, None for missing ones.
        placements: the placements of those that the program reads, by their index after `count`.
        count: the number of leaves of a call.
    """

    guarded = "placements of tensors that the function rebinds"

    def __init__(
        self,
        find: Callable[[list[Any]], list[Any] | None],
        placements: Mapping[Any, Sharding | None],
        count: int,
    ) -> None:
        self._find = find
        self._placements = placements
        self._count = count

    def holds_for(self, leaves: list[Any], given: object) -> bool:
        """Returns True if the placements are unchanged."""
        if not spread.exists:
            return True
        found = self._find(leaves)
        if found is None:
            return True  # another guard checks this
        for index, placement in self._placements.items():
            array = cell_of(found[index - self._count]).array
            if not is_same(placement_of(array), placement, array.ndim):
                return False
        return True

    def why(self) -> str:
        """Returns what differs."""
        return _WHY
