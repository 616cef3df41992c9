"""Handles arguments that overlap in memory, in graphs that write to some of them.

AOTAutograd passes the whole memory of such arguments to the program, which views it at their
offsets at compile time; if none overlap, each argument is passed separately. PyTorch does not guard
the offsets. A call with different offsets runs uncompiled.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import fx

from calque.device.memory.cell import view_of
from calque.device.memory.geometry import extent
from calque.errors import EagerWarning
from calque.errors.warning import warn
from calque.upstream.torch_internals import TracingContext

Tensor = torch.Tensor
_OTHERWISE = (
    "a compiled function writes to an argument, and its arguments overlap in memory differently "
    "than when it was compiled, so this call runs uncompiled. Pass a clone() of one of them."
)


def may_overlap(inputs: Sequence[Any]) -> bool:
    """Returns True if any arguments share memory."""
    tensors = [value for value in inputs if _is_strided(value)]
    return len(set(map(_memory, tensors))) < len(tensors)


class Writes:
    """The writes to arguments that AOTAutograd knows of, read while it compiles a graph."""

    def __init__(self) -> None:
        self._meta: Any = None

    def see(self) -> None:
        """Called while the forward or inference graph is being compiled."""
        context = TracingContext.try_get()
        self._meta = None if context is None else context.fw_metadata

    def guarded(
        self, graph: fx.GraphModule, inputs: Sequence[Any], run: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Returns a compiled graph that runs only if arguments overlap as in its first call."""
        watched = self._watched(inputs)
        if len(watched) < 2:
            return run
        offsets = {i: inputs[i].storage_offset() for i in watched}
        offsets = {i: offset for i, offset in offsets.items() if isinstance(offset, int)}
        first: list[tuple[int, int]] | None = None

        def checked(*arguments: Any) -> Any:
            nonlocal first
            found = list(_overlaps(arguments, watched))
            if first is None:
                first = found
            moved = [
                i for pair in found for i in pair if arguments[i].storage_offset() != offsets.get(i)
            ]
            if found == first and not any(i in offsets for i in moved):
                return run(*arguments)
            warn(_OTHERWISE, EagerWarning)
            return graph(*arguments)

        return checked

    def _watched(self, inputs: Sequence[Any]) -> list[int]:
        """Returns the arguments that may overlap with one that is written to.

        Written parameters and buffers, such as those of batch norm, are only compared with each
        other.
        """
        meta = self._meta
        if meta is None:
            return []
        tensors = [index for index, value in enumerate(inputs) if _is_strided(value)]
        written = {i for i, info in enumerate(meta.input_info) if info.mutates_data}
        if len(meta.input_info) == len(inputs) and not may_overlap(inputs):
            static = set(meta.static_input_indices)
            tensors = [index for index in tensors if index not in static]
            written -= static
        return tensors if written else []


def _overlaps(arguments: Sequence[Any], watched: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields the pairs of arguments whose memory ranges overlap."""
    groups: dict[int, list[int]] = {}
    for index in watched:
        groups.setdefault(_memory(arguments[index]), []).append(index)
    if len(groups) == len(watched):
        return
    for group in groups.values():
        for one, other in combinations(group, 2):
            (start, end), (begin, stop) = _reach(arguments[one]), _reach(arguments[other])
            if start < stop and begin < end:
                yield one, other


def _reach(value: Tensor) -> tuple[int, int]:
    """Returns the first byte of a tensor, and the one after its last."""
    size, stride, offset = view_of(value)
    start = offset * value.itemsize
    return start, start + extent(size, stride) * value.itemsize


def _is_strided(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


def _memory(value: Tensor) -> int:
    return value.untyped_storage()._cdata
