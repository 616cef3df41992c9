"""Indexes with tensors of one integer: `table[k]`, `table[k, 0] = row`, `table[k] += 1`.

PyTorch reads such an index as a number, and returns a view. Where the number is not known, a read
is a copy, and a write puts the changed part back.
"""

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import Node

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.lowering.own_leaves import times_written
from calque.tracing.lowering.unseen_writes import is_view, name_of, written_by

_READS = (operator.getitem, "__getitem__", Tensor.__getitem__)
_WRITES = (operator.setitem, "__setitem__", Tensor.__setitem__)
_MASKS = (torch.uint8, torch.bool)


class _Copy:
    """A copy of the part of a tensor at an index.

    Attributes:
        value: the copy.
        names: the nodes that are the copy or views of it.
    """

    def __init__(self, node: Node, value: Tensor, whole: Tensor, key: tuple[Any, Any]) -> None:
        self.value, self.names = value, {node}
        self._whole, self._key = whole, key  # with numbers that the program does not change
        self._counts = self._counted()

    def _counted(self) -> tuple[int, int]:
        return times_written(self.value), times_written(self._whole)

    def is_used_after(self, node: Node) -> bool:
        """Returns True if a later node uses the copy."""
        return any(user > node for name in self.names for user in name.users)

    def settle(self) -> bool:
        """Puts the copy back if it was written to; returns False if only the tensor was."""
        before, self._counts = self._counts, self._counted()
        if self._counts[0] != before[0]:
            _write(self._whole, *self._key, self.value)
            self._counts = self._counted()
            return True
        return self._counts[1] == before[1]


class IndexedCopies:
    """The copies that stand for views while a graph runs."""

    def __init__(self) -> None:
        self._copies: list[_Copy] = []

    def instead(self, node: Node, args: tuple[Any, ...]) -> tuple[bool, Any]:
        """Runs a read or a write whose index is not known as a number.

        Returns:
            Whether it is one, and its result.
        """
        if node.target not in (*_READS, *_WRITES) or not isinstance(args[0], Tensor):
            return False, None
        where, rest = _split(args[0], args[1])
        if all(number is None for number in where):
            return False, None
        if node.target in _WRITES:
            _write(args[0], where, rest, args[2])
            return True, None
        part = torch.ops.aten.index.Tensor(args[0], where)
        part = part[rest] if rest else part
        if not any(isinstance(each, (Tensor, list)) for each in rest):  # as with a number, a view
            numbers = [None if number is None else number.clone() for number in where]
            self._copies.append(_Copy(node, part, args[0], (numbers, rest)))
        return True, part

    def ran(self, node: Node) -> None:
        """Puts copies back that a node has written to.

        Raises:
            TraceError: the node has written to a tensor of which a copy is used later.
        """
        owner: Any = node.args[0] if node.args else None
        stale = []
        for copy in self._copies:
            if owner in copy.names and (is_view(node) or owner in written_by(node)):
                copy.names.add(node)
            if not copy.settle():
                stale.append(copy)
        if any(copy.is_used_after(node) for copy in stale):
            raise _refused(node)
        self._copies = [copy for copy in self._copies if copy.is_used_after(node)]


def _write(whole: Tensor, where: list[Any], rest: tuple[Any, ...], value: Any) -> None:
    part = torch.ops.aten.index.Tensor(whole, where)
    part[rest or ...] = value
    _put(whole, where, part)


def _put(whole: Tensor, where: list[Any], part: Tensor) -> None:
    """Writes to the part of a tensor at some integers, the first of which is taken first."""
    first = next(i for i, number in enumerate(where) if number is not None)
    others = [*where[:first], *where[first + 1 :]]
    if any(number is not None for number in others):
        inner = torch.ops.aten.index.Tensor(whole, where[: first + 1])
        _put(inner, others, part)
        part = inner
    whole[(*[slice(None)] * first, where[first].reshape(1))] = part.unsqueeze(first)


def _split(tensor: Tensor, key: Any) -> tuple[list[Any], tuple[Any, ...]]:
    """Returns the integers of an index by the dimensions of the tensor, and the rest of the index,
    for what they select.
    """
    keys = key if isinstance(key, tuple) else (key,)
    covered = sum(_dims(part) for part in keys)
    where: list[Any] = []
    rest: list[Any] = []
    for part in keys:
        if _is_number(part):
            where.append(part)
            continue
        where += [None] * (tensor.dim() - covered if part is ... else _dims(part))
        rest.append(part)
    return where, tuple(rest) if any(part is not ... for part in rest) else ()


def _dims(part: Any) -> int:
    """Returns how many dimensions a part of an index consumes."""
    if part is None or part is ... or isinstance(part, bool):
        return 0
    return part.dim() if isinstance(part, Tensor) and part.dtype in _MASKS else 1


def _is_number(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dim() == 0 and part.dtype not in _MASKS


def _refused(node: Node) -> SymbolicTraceError:
    return SymbolicTraceError(
        f"{name_of(node)} writes to memory that is also used by its part at an index that is a "
        "tensor without dimensions, which cannot be lowered.\nWrite to the tensor itself "
        "(`x[i] = row`), read the part again afterwards, or use the graph as it is, without "
        "lowering."
    )
