"""Refuses writes through views whose elements overlap in memory.

`x.unfold(0, 3, 1)[0].mul_(2)` writes to memory that other rows of the view share. Functional
operators would return a new view instead, whose overlapping elements have different values, and no
order of copying them back is right in general.
"""

from typing import Any

import torch
from torch.fx.node import Node

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.lowering.unseen_writes import is_view, name_of, written_by


class Overlaps:
    """Tracks, while a graph runs, which nodes are views whose elements overlap."""

    def __init__(self) -> None:
        self._nodes: dict[Node, set[int]] = {}  # the memory of each

    def refuse_write(self, node: Node) -> None:
        """Raise if a node is about to write through such a view.

        Raises:
            TraceError: names the write.
        """
        if any(written in self._nodes for written in written_by(node)):
            raise overlapping(name_of(node))

    def ran(self, node: Node, result: Any) -> None:
        """Record the result of a node."""
        parts = result if isinstance(result, (tuple, list)) else (result,)
        owner = node.args[0] if node.args else None
        memory = set(map(_memory, filter(_is_strided, parts)))
        is_part = owner in self._nodes and is_view(node) and memory & self._nodes[owner]
        if is_part or any(map(_overlaps, filter(_is_strided, parts))):
            self._nodes[node] = memory


def overlapping(what: str) -> SymbolicTraceError:
    """The error for a write through such a view."""
    return SymbolicTraceError(
        f"{what} writes through a view whose elements overlap in memory, which cannot be "
        "lowered.\nWrite to the tensor itself, or use the graph as it is, "
        "without lowering."
    )


def _is_strided(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _overlaps(tensor: torch.Tensor) -> bool:
    """Returns True if two elements of a tensor may overlap in memory.

    >>> x = torch.zeros(8)
    >>> _overlaps(x.unfold(0, 3, 1)), _overlaps(x.unfold(0, 3, 3)), _overlaps(x.view(2, 4).t())
    (True, False, False)
    """
    if 0 in tensor.shape:
        return False
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
