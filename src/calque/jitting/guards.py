"""Guards: conditions, other than its inputs, on which a compiled program depends.

A program serves a call only if every guard holds. A guard that fails describes the difference, so
that `explain()` can report why a function was traced again.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from operator import attrgetter, is_, is_not
from typing import Any, Protocol
from weakref import ref

import torch
from torch.optim import Optimizer

from calque.device.memory.cell import Cell, regeometries
from calque.device.memory.geometry import View
from calque.jitting.host_values import has_same_bits
from calque.jitting.optimizer_numbers import Group
from calque.jitting.optimizers import settings_of
from calque.program.gradients.graph_boundary import has_graph, origin_of
from calque.program.traced_numbers import Comparisons, Place
from calque.state import Row
from calque.state.versions import version_of


class Guard(Protocol):
    """A condition on the function's state for a program to serve a call.

    Attributes:
        guarded: what is compared, for `describe`.
    """

    guarded: str

    def holds(self) -> bool:
        """Returns True if the condition holds."""
        ...

    def why(self) -> str:
        """Returns what differed when the guard last failed."""
        ...


class CallGuard(Protocol):
    """A condition on a call, or on a call and the state together.

    Attributes:
        guarded: what is compared, for `describe`.
    """

    guarded: str

    def holds_for(self, leaves: list[Any], given: object) -> bool:
        """Returns True if the condition holds for a call's leaves and its (args, kwargs)."""
        ...

    def why(self) -> str:
        """Returns what differed when the guard last failed."""
        ...


# These loops run over every tensor of the state in every call, so they are in C.
_storage_of = torch.Tensor.untyped_storage
_dtype = attrgetter("dtype")
_GEOMETRY: tuple[tuple[str, Any], ...] = (
    ("size", torch.Tensor.size),
    ("stride", torch.Tensor.stride),
    ("offset", torch.Tensor.storage_offset),
)
"""The fields of a `View`, and C functions that return them for a tensor, because guards are
evaluated at each call.
"""
_requires_grad = attrgetter("requires_grad")
_gradient = attrgetter("grad")
_param_groups = attrgetter("param_groups")


class CellGuard:
    """Guards that tensors of the state have the same storages and geometry.

    `p.data = x` changes them without an operator.
    """

    guarded = "storages of the state"

    def __init__(self, rows: Iterable[tuple[torch.Tensor, Cell, View]]) -> None:
        rows = list(rows)
        self.tensors: list[torch.Tensor] = [tensor for tensor, _, _ in rows]
        self.cells: list[Cell] = [cell for _, cell, _ in rows]
        self.storages: list[torch.UntypedStorage] = [
            tensor.untyped_storage() for tensor in self.tensors
        ]
        views = [view for _, _, view in rows]
        self.geometries: list[tuple[Callable[[torch.Tensor], Any], list[Any]]] = [
            (read, [getattr(v, name) for v in views]) for name, read in _GEOMETRY
        ]
        self.dtypes: list[torch.dtype] = [tensor.dtype for tensor in self.tensors]
        self.shapes: list[tuple[int, ...]] = [cell.array.shape for cell in self.cells]
        self.looked_at: int = -1

    def holds(self) -> bool:
        """Returns True if every tensor has the same storage and geometry."""
        if list(map(_storage_of, self.tensors)) != self.storages:  # compares by identity, in C
            return False
        if list(map(_dtype, self.tensors)) != self.dtypes:
            return False
        for read, known in self.geometries:
            if list(map(read, self.tensors)) != known:
                return False
        return self.have_shapes()

    def have_shapes(self) -> bool:
        """Returns True if the arrays have the same shapes, which are checked only after operators
        that change them.
        """
        count = regeometries.count
        if count != self.looked_at:
            if [cell.array.shape for cell in self.cells] != self.shapes:
                return False
            self.looked_at = count
        return True

    def why(self) -> str:
        """Returns what differs."""
        return "a tensor has other data or another geometry (`.data = `, `set_`, `resize_`)"


class GradientGuard:
    """Guards requires_grad of the leaves that a program reads, and which of them have a gradient.

    Args:
        leaves: the leaves.
        has_gradient: whether each had a gradient before the function ran.
        fixed: leaves with the gradient that they must have.
        looked_at: for each leaf that does not require a gradient, whether the program may read its
            gradient.
    """

    guarded = "requires_grad and presence of gradients"

    def __init__(
        self,
        leaves: list[torch.Tensor],
        has_gradient: list[bool],
        fixed: list[tuple[torch.Tensor, torch.Tensor]],
        looked_at: list[bool],
    ) -> None:
        self.fixed = fixed
        self.leaves = leaves
        self.flags: list[bool] = [leaf.requires_grad for leaf in leaves]
        rows = [
            (leaf, has)
            for leaf, has, looks in zip(leaves, has_gradient, looked_at, strict=True)
            if leaf.requires_grad or looks
        ]
        self.with_gradient: list[torch.Tensor] = [leaf for leaf, has in rows if has]
        self.without: list[torch.Tensor] = [leaf for leaf, has in rows if not has]

    def holds(self) -> bool:
        """Returns True if every flag and the presence of every gradient are unchanged."""
        if list(map(_requires_grad, self.leaves)) != self.flags:
            return False
        if self.without and any(map(is_not, map(_gradient, self.without), repeat(None))):
            return False
        if self.with_gradient and any(map(is_, map(_gradient, self.with_gradient), repeat(None))):
            return False
        return not self.fixed or all(leaf.grad is gradient for leaf, gradient in self.fixed)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """A context manager in which the same gradients are present as before."""
        before = [(leaf, leaf.grad) for leaf in (*self.without, *self.with_gradient)]
        for leaf in self.without:
            leaf.grad = None
        for leaf in self.with_gradient:
            if leaf.grad is None:
                leaf.grad = torch.zeros_like(leaf)
        try:
            yield
        finally:
            for leaf, gradient in before:
                leaf.grad = gradient

    def why(self) -> str:
        """Returns what differs."""
        if list(map(_requires_grad, self.leaves)) != self.flags:
            return "requires_grad of a tensor changed"
        if any(leaf.grad is not gradient for leaf, gradient in self.fixed):
            return "a gradient that is also a variable now refers to a different tensor"
        return "a gradient that was None is a tensor now, or vice versa"


class WeakGradientGuard:
    """Like `GradientGuard`, for leaves that the state holds weakly; the guard does not keep them
    alive.

    Args:
        leaves: the leaves, whether each has a gradient, and whether the program may read it even if
            the leaf does not require one.
    """

    guarded = "requires_grad and presence of gradients"

    def __init__(self, leaves: Iterable[tuple[torch.Tensor, bool, bool]]) -> None:
        self._rows = [
            (ref(leaf), leaf.requires_grad, leaf.requires_grad or looks, has)
            for leaf, has, looks in leaves
        ]

    def holds(self) -> bool:
        """Returns True if all live leaves are unchanged; the state guard covers the others."""
        for reference, flag, looks, has_gradient in self._rows:
            leaf = reference()
            if leaf is None:
                continue
            if leaf.requires_grad != flag or (looks and (leaf.grad is not None) != has_gradient):
                return False
        return True

    def why(self) -> str:
        """Returns what differs."""
        return "requires_grad of a tensor, or whether it has a gradient, changed"


class HistoryGuard:
    """Guards that tensors of the state which are not leaves were computed as before.

    Args:
        rows: the tensors, with the nodes that computed them (see `origin_of`), and whether the
            program reads their values. The guard does not keep the others alive.
    """

    guarded = "autograd graphs of the state"

    def __init__(self, rows: Iterable[tuple[torch.Tensor, Any, bool]]) -> None:
        rows = list(rows)
        self._read = [(tensor, origin) for tensor, origin, is_read in rows if is_read]
        self._others = [ref(tensor) for tensor, _, is_read in rows if not is_read]

    def holds(self) -> bool:
        """Returns True if all have the same nodes, and those not read have any."""
        others = filter(lambda tensor: tensor is not None, (one() for one in self._others))
        return all(map(has_graph, others)) and all(
            has_graph(tensor) and origin_of(tensor) is origin for tensor, origin in self._read
        )

    def why(self) -> str:
        """Returns what differs."""
        return "a tensor that was computed with gradients has another autograd graph"


class OptimizerGuard:
    """Guards the settings of optimizers that are not inputs (nesterov, amsgrad), and the param
    groups.

    Attributes:
        optimizers: the optimizers.
    """

    guarded = "settings of optimizers"

    def __init__(
        self,
        optimizers: Iterable[Optimizer],
        watch: Comparisons,
        traced: Collection[Place] = (),
        counters: Collection[Row] = (),
    ) -> None:
        self._traced = traced
        self._counters = counters
        self.rows: list[tuple[Optimizer, list[Group]]] = [
            (one, settings_of(one, traced)) for one in optimizers
        ]
        self._groups = [group for optimizer, _ in self.rows for group in optimizer.param_groups]
        self.watch = watch
        self.optimizers: list[Optimizer] = [optimizer for optimizer, _ in self.rows]
        self._versions: list[int] = []

    def holds(self) -> bool:
        """Returns True if every setting and comparison is unchanged."""
        if version_of is None or self._counters:
            return self._hold()
        groups = chain.from_iterable(map(_param_groups, self.optimizers))
        versions = list(map(version_of, groups))  # versions are unique over all dicts
        if versions != self._versions:
            if not self._hold():
                return False
            self._versions = versions
        return True

    def _hold(self) -> bool:
        return (
            self._are_groups()
            and self.watch.holds()
            and all(settings_of(one, self._traced) == settings for one, settings in self.rows)
        )

    def _are_groups(self) -> bool:
        """Returns True if the param groups are still the dicts from which the program reads
        numbers.
        """
        now = list(chain.from_iterable(map(_param_groups, self.optimizers)))
        return len(now) == len(self._groups) and all(map(is_, now, self._groups))

    def why(self) -> str:
        """Returns what differs."""
        for optimizer, settings in self.rows:
            if settings_of(optimizer, self._traced) != settings:
                return f"a setting of {type(optimizer).__name__} changed"
        if not self._are_groups():
            return "an optimizer has other param groups"
        return "a comparison with a hyper-parameter has another result"


class HostGuard:
    """Guards the bits of CPU tensors that the function's Python code has read."""

    guarded = "values of CPU tensors"

    def __init__(self, looked_at: Iterable[tuple[torch.Tensor, int | None, torch.Tensor]]) -> None:
        self.rows: list[tuple[torch.Tensor | None, int, torch.Tensor]] = [
            (tensor, -1, value) if index is None else (None, index, value)
            for tensor, index, value in looked_at
        ]

    def holds_for(self, leaves: list[Any], given: object) -> bool:
        """Returns True if every tensor has the same values."""
        return all(
            has_same_bits(leaves[index] if tensor is None else tensor, value)
            for tensor, index, value in self.rows
        )

    def why(self) -> str:
        """Returns what differs."""
        return "a CPU tensor that the function computes with has changed; move it to 'jax'"
