"""Where each call of a program finds its inputs: what the trace lifted, told from the arguments."""

from typing import Any

import torch

from calque.device.memory.cell import Cell
from calque.jitting.arguments import Arguments
from calque.program.lifting import Input


class Sources:
    """Places the inputs of one trace.

    Args:
        leaves: the leaves of the call's arguments.
        arguments: what the function was given for them.
        own_hosts: the CPU tensors of the function's own state.

    Attributes:
        pinned_hosts: CPU tensors that are arguments and state at once, with their index.
    """

    def __init__(
        self, leaves: list[Any], arguments: Arguments, own_hosts: list[torch.Tensor]
    ) -> None:
        self.pinned_hosts: list[tuple[int, torch.Tensor]] = []
        self._leaves = leaves
        self._arguments = arguments
        self._own_hosts = own_hosts

    def place(self, one: Input, cells: dict[Cell, str], tensors: dict[int, str]) -> None:
        """Give an input its kind, source and name; the names of cells, and of tensors by id."""
        if one.kind == "cell":
            one.name = cells.get(one.source, "")
            index = self._arguments.indexes.get(one.source)
            if index is not None:
                one.source = index
                one.kind = self._kind(one, index)
        elif one.kind == "hyper":
            one.name = one.source.key
        elif one.kind == "host":
            self._place_host(one, tensors)

    def _kind(self, one: Input, index: int) -> str:
        if index >= len(self._leaves) or index in self._arguments.stored:
            return "handed"
        return "argument" if one.shape == self._leaves[index].shape else "repeated"

    def _place_host(self, one: Input, tensors: dict[int, str]) -> None:
        """Where a CPU tensor comes from: kernels see aliases of it, so its memory tells."""
        for index, leaf in enumerate(self._leaves):
            on_host = isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu"
            if on_host and one.source.is_set_to(leaf):
                if any(one.source.is_set_to(own) for own in self._own_hosts):
                    self.pinned_hosts.append((index, leaf))
                else:
                    one.kind, one.source = "host argument", index
                return
        for own in self._own_hosts:
            if one.source.is_set_to(own):
                one.name = tensors[id(own)]
