"""Finds the tensors that a program reads from variables in each call, although they are not passed
to it.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from calque.device.memory.cell import Cell, cell_of
from calque.jitting.appended_items import hidden_in
from calque.jitting.arguments import Arguments
from calque.jitting.implicit_arguments import (
    GradientAmongArguments,
    GradientOf,
    HeldIn,
    Implicit,
)
from calque.jitting.known_tensors import KnownTensors
from calque.jitting.python_effects import PythonState, Rebound
from calque.jitting.recording import Target
from calque.jitting.replaced_state import asks_which_gradient, compares_tensors
from calque.program.gradients.graph_boundary import is_hooked
from calque.program.results import Existing, OwnTensor
from calque.program.trees import is_tensor
from calque.state import ATOMIC, Row
from calque.state.contents import nested

Tensor = torch.Tensor


def target_of(tensor: Tensor, positions: Mapping[int, int], pinned: Mapping[int, Any]) -> Target:
    """Returns the target by which each call finds a tensor from outside.

    Args:
        positions: the indexes of the arguments, by id.
        pinned: the arguments that are also part of the state, by index.
    """
    index = positions.get(id(tensor))
    return Existing(tensor) if index is None or index in pinned else OwnTensor(index)


class ImplicitFinder:
    """Finds these tensors: tensors that the function rebinds, and gradients.

    Args:
        state: the Python state of the trace.
        known: the leaves that the trace has found.
        arguments: the arguments of the function, to which the tensors are appended.
        values: the cells that the program reads or writes.

    Attributes:
        found: their sources, with the tensors of the trace.
        free: keys of rows that may hold different tensors in each call.
        fixed: tensors whose gradient is also a variable, with these gradients.
        others: the other tensors of the state, by id; None if the function cannot tell which it
            has.
    """

    def __init__(
        self,
        state: PythonState,
        known: KnownTensors,
        arguments: Arguments,
        values: Mapping[Cell, Any],
    ) -> None:
        self.found: list[tuple[Implicit, list[Any]]] = []
        self.free: list[tuple[Row, Any]] = []
        self.fixed: list[tuple[Tensor, Tensor]] = []
        self.others: dict[int, Tensor] | None = None
        self._state = state
        self._known = known
        self._arguments = arguments
        self._values = values
        self._unread: dict[Cell, list[tuple[Tensor, Tensor]]] = {}
        self._elsewhere: set[Cell] = set()
        self._asks_which = False
        self._count = len(arguments.stand_ins)
        self._positions: dict[int, int] = {}

    def find(self, rebound: list[Rebound], tensors: dict[int, Tensor]) -> None:
        """Find them; `tensors` has all tensors that the function reaches, by id."""
        given = set(map(id, self._arguments.stand_ins))
        hidden = hidden_in(self._state.snapshot, self._state.appended, given)
        hidden = self._arguments.replaced.union(hidden)
        found = {key: one for key, one in tensors.items() if key not in hidden and is_tensor(one)}
        counts = Counter(map(cell_of, found.values()))
        # By `id`, code may find what is known of a tensor in places that nothing compares.
        places = [p for p in (*rebound, *self._state.freed) if not self._is_identified(p)]
        held = self._held() if places else Counter()
        # What another variable holds, too, may differ only if that variable may.
        while (may := self._free_of(places, held, counts)) != places:
            places = may
        for place in places:
            self.free.append((place.holder, place.key))
            self._add(HeldIn(place), place.before)
        self._find_gradients(counts)
        implicit = [one for _, tensors in self.found for one in tensors]
        if self.found and compares_tensors(self._state.snapshot, implicit):
            free = given.union(map(id, implicit))
            self.others = {key: one for key, one in found.items() if key not in free}
        self._state.freed.clear()

    def _is_identified(self, place: Rebound) -> bool:
        """Returns True if code has asked for the id of what a variable held."""
        value = place.holder.before[place.key]
        return self._state.snapshot.identifies((value, *place.before, *nested(value)))

    def _may_differ(self, place: Rebound, counts: Counter[Cell], ours: Counter[Cell]) -> bool:
        """Returns True if nothing but variables that may differ has the memory, too.

        Args:
            counts, ours: how many tensors of the state, and of these variables, have each memory.
        """
        tensors = [t for t in place.before if is_tensor(t)]
        cells = set(map(cell_of, tensors))
        alone = all(counts[c] <= ours[c] and not self._is_argument(c) for c in cells)
        return bool(tensors) and alone and all(map(self._is_replaceable, tensors))

    def _is_argument(self, cell: Cell) -> bool:
        """Returns True if an argument of the call has the memory, too."""
        arguments = self._arguments
        index = arguments.indexes.get(cell, self._count)
        return index < self._count or any(c is cell for c, _ in arguments.pinned.values())

    def _find_gradients(self, counts: Counter[Cell]) -> None:
        arguments = self._arguments
        self._elsewhere.update(counts.keys() - arguments.indexes.keys())
        self._elsewhere.update(cell for cell, _ in arguments.pinned.values())
        self._positions.update((id(t), i) for i, t in enumerate(arguments.stand_ins))
        for key, gradient in self._known.gradients().items():
            if gradient is not None and vars(gradient):
                self._state.unrepeatable.append("a gradient has Python attributes")
            if gradient is not None and is_tensor(gradient):
                pair = self._known.tensors[key], gradient
                self._unread.setdefault(cell_of(gradient), []).append(pair)
        self._asks_which = asks_which_gradient(self._state.snapshot)
        tells = self._tells_gradients()
        for cell in [cell for cell in self._unread if tells or cell in self._values]:
            self.moved(cell)

    def _tells_gradients(self) -> bool:
        """Returns True if the user's code may compare a gradient with other tensors by identity,
        and so depend on one that it reads in no other way.
        """
        snapshot = self._state.snapshot
        names = "grad" in snapshot.namespaces.own_words or snapshot.namespaces.computes("grad")
        return names and compares_tensors(snapshot, self._known.gradients().values())

    def moved(self, cell: Cell) -> list[tuple[Tensor, int | None]]:
        """Note gradients from before the trace that the program reads, or that outlive it.

        Args:
            cell: their memory.

        Returns:
            Those not noted before, with the index by which each call passes them, if it does.
        """
        pairs = self._unread.pop(cell, ())
        return [(gradient, self._note(tensor, gradient)) for tensor, gradient in pairs]

    def _note(self, tensor: Tensor, gradient: Tensor) -> int | None:
        arguments, cell = self._arguments, cell_of(gradient)
        target = target_of(tensor, self._positions, arguments.pinned)
        index = self._positions.get(id(gradient), arguments.indexes.get(cell, self._count))
        is_among = index < self._count and index not in arguments.pinned
        if is_among:
            is_argument = arguments.stand_ins[index] is gradient
            self._add(GradientAmongArguments(target, index, is_argument), [])
            if is_argument:
                return index
        asks = self._asks_which or self._state.snapshot.identifies((gradient,))
        if asks or is_among or cell in self._elsewhere or vars(gradient):
            self.fixed.append((tensor, gradient))
            return None
        index = self._add(GradientOf(target), [gradient])
        self._positions[id(gradient)] = index
        return index

    def _held(self) -> Counter[int]:
        """Returns how often the variables of the state hold each object, by id."""
        held: Counter[int] = Counter()
        for row in self._state.snapshot.rows.values():
            keys = [key for key in row.before if isinstance(key, Tensor)]
            stack = keys if row in self._state.appended else [*keys, *row.before.values()]
            while stack:
                value = stack.pop()
                held[id(value)] += 1
                if isinstance(value, tuple):
                    stack += value
        return held

    def _free_of(
        self, places: list[Rebound], held: Counter[int], counts: Counter[Cell]
    ) -> list[Rebound]:
        """Returns the variables whose tensors and containers may differ, and are in no other
        variable of the state, nor is their memory.
        """
        before = [(place, place.holder.before[place.key]) for place in places]
        given = Counter(id(value) for _, value in before)
        given.update(
            id(leaf) for place, value in before for leaf in place.before if leaf is not value
        )
        tensors = {id(t): t for place in places for t in place.before if is_tensor(t)}
        ours = Counter(map(cell_of, tensors.values()))
        return [
            place
            for place, value in before
            if self._may_differ(place, counts, ours)
            and all(
                held[id(one)] <= given[id(one)]
                for one in (value, *place.before)
                if type(one) not in ATOMIC
            )
        ]

    def _is_replaceable(self, tensor: Tensor) -> bool:
        """Returns True if a different tensor may replace it in the next call."""
        if not tensor.is_leaf:
            return True
        before = self._known.before.get(id(tensor))
        gradient = tensor.grad if before is None else before.gradient
        return gradient is None and not is_hooked(tensor)

    def _add(self, source: Implicit, tensors: list[Any]) -> int:
        """Returns the index of the first of the tensors among the arguments."""
        self.found.append((source, tensors))
        first = len(self._arguments.stand_ins)
        for tensor in tensors:
            if is_tensor(tensor):
                indexes = self._arguments.indexes
                indexes.setdefault(cell_of(tensor), len(self._arguments.stand_ins))
            self._arguments.stand_ins.append(tensor)
        return first
