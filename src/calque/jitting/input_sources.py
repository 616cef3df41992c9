"""Finds the sources of a program's inputs and the sinks of its outputs: state or arguments."""

from collections.abc import Iterable
from typing import Any

import torch

from calque.device.memory.cell import Cell
from calque.device.runtime.placement import placement_of
from calque.jitting.arguments import Arguments
from calque.program.lifting import Input
from calque.program.sinks import ArgumentSink, CellSink, Sink, StorageSink
from calque.program.sources import (
    ArgumentSource,
    CellSource,
    HostArgumentSource,
    HostSource,
    Source,
    StorageSource,
    UnrepeatedSource,
)


class SourceFinder:
    """Finds the sources of the inputs of one trace.

    Args:
        leaves: the leaves of the call's arguments.
        arguments: the values that the function was called with for them.
        own_hosts: the CPU tensors of the function's own state.

    Attributes:
        pinned_hosts: CPU tensors that are both arguments and state, with their index.
    """

    def __init__(
        self, leaves: list[Any], arguments: Arguments, own_hosts: list[torch.Tensor]
    ) -> None:
        self.pinned_hosts: list[tuple[int, torch.Tensor]] = []
        self._leaves = leaves
        self._arguments = arguments
        self._own_hosts = own_hosts

    def find(self, one: Input, cells: dict[Cell, str], tensors: dict[int, str]) -> None:
        """Find the source and name of an input, given the names of cells, and of tensors by id."""
        source = one.source
        if isinstance(source, CellSource):
            one.name = cells.get(source.cell, "")
            index = self._arguments.indexes.get(source.cell)
            if index is not None:
                one.source = self._of_argument(one, index)
        elif isinstance(source, HostSource):
            self._find_host(one, source.tensor, tensors)

    def _of_argument(self, one: Input, index: int) -> Source:
        if index >= len(self._leaves) or index in self._arguments.stored:
            return StorageSource(index)
        whole = one.shape == self._leaves[index].shape
        return ArgumentSource(index) if whole else UnrepeatedSource(index)

    def pinned(self, computed_with: Iterable[int]) -> list[tuple[int, torch.Tensor]]:
        """Returns the CPU tensors that are both arguments and state, with their index.

        Args:
            computed_with: the indexes of the arguments with which calls compute on the CPU.
        """
        for index in computed_with:
            self.pin(index, self._leaves[index])
        return self.pinned_hosts

    def pin(self, index: int, leaf: torch.Tensor) -> bool:
        """Record a CPU tensor among the arguments, if it is part of the state; returns whether it
        is.
        """
        is_own = any(leaf.is_set_to(own) for own in self._own_hosts)
        if is_own and all(index != known for known, _ in self.pinned_hosts):
            self.pinned_hosts.append((index, leaf))
        return is_own

    def _find_host(self, one: Input, tensor: torch.Tensor, tensors: dict[int, str]) -> None:
        """Finds the source of a CPU tensor by its memory, because kernels see aliases of it."""
        for index, leaf in enumerate(self._leaves):
            on_host = isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu"
            if on_host and tensor.is_set_to(leaf):
                if not self.pin(index, leaf):
                    one.source = HostArgumentSource(index)
                return
        for own in self._own_hosts:
            if tensor.is_set_to(own):
                one.name = tensors.get(id(own), "")


def sink_of(cell: Cell, arguments: Arguments, count: int) -> Sink:
    """Returns the sink for a cell, in a call whose arguments have `count` leaves."""
    placement = placement_of(cell.array)
    index = arguments.indexes.get(cell)
    if index is None:
        return CellSink(cell, placement=placement)
    if index >= count or index in arguments.stored:
        return StorageSink(index, placement=placement)
    return ArgumentSink(index, placement=placement)


def state_of(inputs: Iterable[Input]) -> set[Cell]:
    """Returns the cells of the function's own state among the inputs."""
    return {one.source.cell for one in inputs if isinstance(one.source, CellSource)}
