"""Tensors that outlive a traced function with a graph behind them.

Each call makes them anew, as results of one node of PyTorch's graph (see `differentiable`), and
gives those that were there before a new history.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from calque.device.memory.cell import cell_of, view_of
from calque.device.memory.geometry import View
from calque.program.gradients.border import has_graph
from calque.program.results import Description, Fresh, Made, Outputs

Tensor = torch.Tensor


@dataclass(frozen=True)
class Blank:
    """A tensor of which only the shape and dtype matter."""

    shape: torch.Size
    dtype: torch.dtype

    def bare(self, outputs: Outputs) -> Tensor:
        """The tensor."""
        return torch.zeros((), dtype=self.dtype, device="jax").expand(self.shape)


@dataclass(eq=False)
class Carried(Made):
    """A tensor with a graph behind it.

    Attributes:
        slot: which result of the node it is, or is a view of.
        view: its geometry, if it is a view of it.
        retains: whether it is to keep its gradient.
        gradient: the gradient that it has.
    """

    slot: int
    view: View | None = None
    retains: bool = False
    gradient: Description | None = None

    def build(self, outputs: Outputs) -> Tensor:
        if self.attributes is None and self._is_bare():
            return outputs.carried[self.slot]
        return super().build(outputs)

    def _is_bare(self) -> bool:
        return self.view is None and not self.retains and self.gradient is None

    def make(self, outputs: Outputs) -> Tensor:
        tensor = outputs.carried[self.slot]
        if self.view is not None:
            tensor = tensor.as_strided(*self.view)
        if self.retains:
            tensor.retain_grad()
        if self.gradient is not None:
            tensor.grad = self.gradient.build(outputs)
        return tensor


@dataclass(eq=False)
class Attached(Made):
    """A tensor over memory that was there before, with a graph of this call behind it.

    Attributes:
        target: the tensor.
        slot: the node's result whose history it gets.
    """

    target: Any
    slot: int

    def make(self, outputs: Outputs) -> Tensor:
        return _Rewrite.apply(self.target.build(outputs), outputs.carried[self.slot])


class _Rewrite(torch.autograd.Function):
    """A tensor that was written in place: its history is that of what was written."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, written: Tensor) -> Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, gradient


@dataclass(eq=False)
class Carrier:
    """One result of the node, while it is traced.

    Attributes:
        tensor: the traced tensor.
        bare: what makes it, without its graph.
    """

    tensor: Tensor
    bare: Fresh | Blank
    places: list[Carried | Attached] = field(default_factory=list)


class Carriers:
    """The tensors of a trace that carry gradients out.

    Attributes:
        found: they, in the order of the node's results once they are settled.
    """

    def __init__(self) -> None:
        self.found: list[Carrier] = []

    def add(self, tensor: Tensor, bare: Fresh) -> Carried:
        """One over memory made in the trace."""
        place = Carried(-1, None, tensor.retains_grad)
        self.found.append(Carrier(tensor, bare, [place]))
        return place

    def attach(self, tensor: Tensor, target: Description) -> Attached:
        """One over memory that was there before."""
        place = Attached(target, -1)
        self.found.append(Carrier(tensor, Blank(tensor.shape, tensor.dtype), [place]))
        return place

    def settle(self, described: Callable[[Tensor], Fresh]) -> None:
        """Number them. Views of one tensor are to be its views after each call, too.

        Args:
            described: describes the tensor that others are views of.
        """
        views: dict[int, list[Carrier]] = {}
        whole = {id(one.tensor): one for one in self.found}
        for one in self.found:
            base = _base(one)
            if base is not None:
                views.setdefault(id(base), []).append(one)
        for key, group in views.items():
            base = whole.get(key)
            if base is None and len(group) > 1:
                tensor = group[0].tensor._base
                assert tensor is not None
                base = Carrier(tensor, described(tensor))
                self.found.append(base)
            if base is not None:
                for one in group:
                    for place in one.places:
                        assert isinstance(place, Carried)
                        place.view = view_of(one.tensor)
                    base.places += one.places
                    self.found.remove(one)
        self.number()

    def number(self) -> None:
        """Number them as they are."""
        for slot, one in enumerate(self.found):
            for place in one.places:
                place.slot = slot


def _base(one: Carrier) -> Tensor | None:
    """What a tensor made in the trace is a view of, if that has a graph of its own."""
    tensor = one.tensor
    if not isinstance(one.bare, Fresh) or not tensor._is_view():
        return None
    base = tensor._base
    assert base is not None
    same = base.dtype == tensor.dtype and cell_of(base) is cell_of(tensor)
    return base if same and has_graph(base) else None
