"""Guards: what a compiled program was made for that is not an input of it.

A program serves a call only if every guard holds; one that fails names itself, so that
`explain()` can say why a function was traced again.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from operator import attrgetter, is_, is_not
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from calque.device.memory.cell import Cell, regeometries, view_of
from calque.device.memory.geometry import View
from calque.jitting.optimizers import settings_of
from calque.program.traced_numbers import Watch
from calque.state.versions import version_of


class Guard(Protocol):
    """What must hold of the function's state for a program to serve a call.

    Attributes:
        guarded: what is compared, for `describe`.
    """

    guarded: str

    def holds(self) -> bool:
        """Whether it does."""
        ...

    def why(self) -> str:
        """What differed when it was last asked and did not."""
        ...


class CallGuard(Protocol):
    """What must hold of a call, or of a call and the state together.

    Attributes:
        guarded: what is compared, for `describe`.
    """

    guarded: str

    def holds_for(self, leaves: list[Any], given: Any) -> bool:
        """Whether it does for a call's leaves and its (args, kwargs)."""
        ...

    def why(self) -> str:
        """What differed when it was last asked and did not."""
        ...


# These loops run over every tensor of the state at every call: they are kept in C.
_storage_of = torch.Tensor.untyped_storage
_requires_grad = attrgetter("requires_grad")
_gradient = attrgetter("grad")
_param_groups = attrgetter("param_groups")


class CellGuard:
    """That tensors of the state stand on the storages they stood on (`p.data = x` changes that)."""

    guarded = "storages of the state"

    def __init__(self, rows: Iterable[tuple[torch.Tensor, Cell, View]]) -> None:
        rows = list(rows)
        self.tensors = [tensor for tensor, _, _ in rows]
        self.cells = [cell for _, cell, _ in rows]
        self.storages = [tensor.untyped_storage() for tensor in self.tensors]
        self.geometries = [(view, cell.array.shape) for _, cell, view in rows]
        self.looked_at = -1

    def holds(self) -> bool:
        """Whether every tensor stands where it stood, in the same geometry."""
        if list(map(_storage_of, self.tensors)) != self.storages:  # compares identities in C
            return False
        count = regeometries.count
        if count != self.looked_at:
            now = [
                (view_of(t), c.array.shape) for t, c in zip(self.tensors, self.cells, strict=True)
            ]
            if now != self.geometries:
                return False
            self.looked_at = count
        return True

    def why(self) -> str:
        """What differs."""
        return "a tensor was given other data or another geometry (`.data = `, `set_`, `resize_`)"


class GradientGuard:
    """requires_grad of the leaves a program reads, and which of them have a gradient."""

    guarded = "requires_grad and presence of gradients"

    def __init__(
        self,
        leaves: list[torch.Tensor],
        has_gradient: list[bool],
        fixed: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        self.fixed = fixed
        self.leaves = leaves
        self.flags = [leaf.requires_grad for leaf in leaves]
        rows = [r for r in zip(leaves, has_gradient, strict=True) if r[0].requires_grad]
        self.with_gradient = [leaf for leaf, has in rows if has]
        self.without = [leaf for leaf, has in rows if not has]

    def holds(self) -> bool:
        """Whether every flag and every gradient's presence is as it was."""
        if list(map(_requires_grad, self.leaves)) != self.flags:
            return False
        if self.without and any(map(is_not, map(_gradient, self.without), repeat(None))):
            return False
        if self.with_gradient and any(map(is_, map(_gradient, self.with_gradient), repeat(None))):
            return False
        return not self.fixed or all(leaf.grad is gradient for leaf, gradient in self.fixed)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Within, as many gradients are there as were."""
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
        """What differs."""
        if list(map(_requires_grad, self.leaves)) != self.flags:
            return "requires_grad of a tensor changed"
        if any(leaf.grad is not gradient for leaf, gradient in self.fixed):
            return "a gradient that is also a variable is another tensor"
        return "a gradient that was None is there now, or the other way round"


class OptimizerGuard:
    """The settings of optimizers that are not live numbers (nesterov, amsgrad)."""

    guarded = "settings of optimizers"

    def __init__(self, optimizers: Iterable[Optimizer], watch: Watch) -> None:
        self.rows = [(o, settings_of(o)) for o in optimizers]
        self.watch = watch
        self.optimizers = [optimizer for optimizer, _ in self.rows]
        self._versions: list[int] = []

    def holds(self) -> bool:
        """Whether every setting and comparison is as it was."""
        if version_of is None:
            return self._hold()
        groups = chain.from_iterable(map(_param_groups, self.optimizers))
        versions = list(map(version_of, groups))  # no two dicts have the same
        if versions != self._versions:
            if not self._hold():
                return False
            self._versions = versions
        return True

    def _hold(self) -> bool:
        return self.watch.holds() and all(
            settings_of(optimizer) == settings for optimizer, settings in self.rows
        )

    def why(self) -> str:
        """What differs."""
        for optimizer, settings in self.rows:
            if settings_of(optimizer) != settings:
                return f"a setting of {type(optimizer).__name__} changed"
        return "a comparison with a hyper-parameter has another answer"


class HostGuard:
    """CPU tensors that Python code of the function looked at: their values must be the same."""

    guarded = "values of CPU tensors"

    def __init__(self, looked_at: Iterable[tuple[torch.Tensor, int | None]]) -> None:
        self.rows = [
            (tensor if index is None else None, index, tensor.detach().clone())
            for tensor, index in looked_at
        ]

    def holds_for(self, leaves: list[Any], given: Any) -> bool:
        """Whether every tensor has the values it had."""
        return all(
            torch.equal(leaves[index] if index is not None else tensor, value)
            for tensor, index, value in self.rows
        )

    def why(self) -> str:
        """What differs."""
        return "a CPU tensor that the function computes with changed; move it to 'jax'"
