"""Tensors with an autograd graph that outlive a traced function.

Each call creates them as results of one autograd node (see `differentiable`), and gives existing
ones a new history.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from calque.device.memory.cell import cell_of, fixed_view_of
from calque.device.memory.geometry import View
from calque.program.gradients.graph_boundary import has_graph
from calque.program.result_views import (
    PLAIN,
    Creation,
    creation_of,
    seen_as,
    set_creation,
)
from calque.program.results import Description, Flow, Fresh, Made, Outputs, ViewOf

Tensor = torch.Tensor


@dataclass(frozen=True)
class Blank:
    """A tensor whose values do not matter."""

    shape: torch.Size
    dtype: torch.dtype

    def bare(self, outputs: Outputs) -> Tensor:
        """Returns the tensor."""
        return torch.zeros((), dtype=self.dtype, device="jax").expand(self.shape)


@dataclass(eq=False)
class Carried(Made):
    """A tensor with an autograd graph.

    Attributes:
        slot: the index of the node's result that it is, or that it is a view of.
        view: its geometry, if it is a view of the result.
        retains: whether it retains its gradient.
        gradient: its gradient.
        creation: how it was created, if it is a view, or a tensor to which a write raises.
        base: the index of the node's result that it is a view of, with a separate history.
    """

    slot: int
    view: View | None = None
    retains: bool = False
    gradient: Description | None = None
    creation: Creation | None = None
    base: int | None = None

    def build(self, outputs: Outputs) -> Tensor:
        if self.is_bare:
            return outputs.carried[self.slot]
        return super().build(outputs)

    @property
    def is_bare(self) -> bool:
        """Returns True if it is itself a result of the node."""
        known = self.attributed or self.gradient is not None or self.retains
        return not known and self.subclass is None and self.view is None and self.creation is None

    def make(self, outputs: Outputs) -> Tensor:
        tensor = outputs.carried[self.slot]
        if self.base is not None:
            tensor = _seen(outputs.carried[self.base], tensor, tensor.dtype, self.view)
        elif self.view is not None:
            tensor = tensor.as_strided(*self.view)
        if self.creation is not None:
            tensor = tensor if self.view is not None else tensor.view_as(tensor)
            set_creation(tensor, self.creation)
        tensor = self.typed(tensor)
        if self.retains:
            tensor.retain_grad()
        if self.gradient is not None:
            tensor.grad = self.gradient.build(outputs)
        return tensor


@dataclass(eq=False)
class Attached(Made):
    """A tensor over older memory that gets a graph in this call.

    Attributes:
        target: the tensor.
        slot: the index of the node's result whose history it gets.
        flow: how gradients flow through it.
    """

    target: Any
    slot: int
    flow: Flow = field(default_factory=Flow)

    def make(self, outputs: Outputs) -> Tensor:
        target, history = self.target, outputs.carried[self.slot]
        if isinstance(target, ViewOf) and target.creation is not None:
            base, view = target.placed(outputs)
            tensor = _seen(base, history, target.dtype, view)
            set_creation(tensor, target.creation)
            tensor = self.typed(tensor)
        else:
            tensor = _Rewrite.apply(target.build(outputs), history)
        self.flow.of(tensor, outputs)
        return tensor


def _seen(base: Tensor, history: Tensor, dtype: torch.dtype, view: View | None) -> Tensor:
    """Returns a view of a tensor, with the history of another."""
    with torch.enable_grad():
        return _Seen.apply(base, history, dtype, view)


class _Seen(torch.autograd.Function):
    """A view of a tensor whose gradient does not go to that tensor."""

    @staticmethod
    def forward(ctx: Any, base: Tensor, history: Tensor, dtype: torch.dtype, view: View) -> Tensor:
        return seen_as(base, dtype, view)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Any:
        return None, gradient, None, None


class _Rewrite(torch.autograd.Function):
    """A tensor that was written in place, whose history is that of the written value."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, written: Tensor) -> Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Any:
        return None, gradient


@dataclass(eq=False)
class Carrier:
    """A result of the node, during the trace.

    Attributes:
        tensor: the traced tensor.
        bare: creates it without its graph.
        places: the descriptions that represent it.
        bases: the descriptions of its views that have a separate history.
    """

    tensor: Tensor
    bare: Fresh | Blank
    places: list[Carried | Attached] = field(default_factory=list)
    bases: list[Any] = field(default_factory=list)


class Carriers:
    """The tensors of a trace through which gradients flow out of the program.

    Attributes:
        found: the tensors, finally in the order of the node's results.
    """

    def __init__(self) -> None:
        self.found: list[Carrier] = []

    def add(self, tensor: Tensor, bare: Fresh) -> Carried:
        """Add a tensor over memory created in the trace."""
        creation = creation_of(tensor)
        raises = creation not in (None, PLAIN)
        place = Carried(-1, None, tensor.retains_grad, creation=creation if raises else None)
        self.found.append(Carrier(tensor, bare, [place]))
        return place

    def attach(
        self, tensor: Tensor, target: Description, gradient: Description | None = None
    ) -> Attached:
        """Add a tensor over older memory, with the gradient that it retains."""
        place = Attached(target, -1, Flow(tensor.retains_grad, gradient))
        self.found.append(Carrier(tensor, Blank(tensor.shape, tensor.dtype), [place]))
        return place

    def settle(
        self, described: Callable[[Tensor], Fresh], is_plain: Callable[[Tensor], bool]
    ) -> None:
        """Number the tensors, such that views of a tensor remain its views in each call.

        Args:
            described: returns the description of a base.
            is_plain: returns True if the gradient of a view goes to its base unchanged.
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
                    self._relate(one, base, is_plain(one.tensor))
        self.number()

    def _relate(self, one: Carrier, base: Carrier, is_plain: bool) -> None:
        """Relate a view to its base, with a separate history unless it is a plain view."""
        for place in one.places:
            assert isinstance(place, Carried)
            place.view = fixed_view_of(one.tensor)
            place.creation = creation_of(one.tensor)
        if is_plain:
            base.places += one.places
            self.found.remove(one)
            return
        one.bare = Blank(one.tensor.shape, one.tensor.dtype)
        base.bases += one.places

    def number(self) -> None:
        """Number the tensors in order."""
        for slot, one in enumerate(self.found):
            for place in one.places:
                place.slot = slot
            for place in one.bases:
                place.base = slot


def _base(one: Carrier) -> Tensor | None:
    """Returns the base of a tensor created in the trace, if the base has an autograd graph."""
    tensor = one.tensor
    if not isinstance(one.bare, Fresh) or not tensor._is_view():
        return None
    base = tensor._base
    assert base is not None
    same = base.dtype == tensor.dtype and cell_of(base) is cell_of(tensor)
    return base if same and has_graph(base) else None
