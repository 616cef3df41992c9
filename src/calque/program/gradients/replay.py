"""The calls of a program with gradients, as nodes of the autograd graph."""

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jax import Array
from jax.extend.core import ClosedJaxpr
from torch.autograd.graph import get_gradient_edge

from calque.device.memory.cell import read
from calque.device.memory.wrapping import wrap
from calque.program.gradients.backward_program import LatePart
from calque.program.gradients.derivatives import DerivativeStep
from calque.program.gradients.differentiable import Backward, TracedPart
from calque.program.gradients.escaping_tensors import Blank
from calque.program.gradients.spent_graph import SpentGraph
from calque.program.jaxprs import split
from calque.program.results import Fresh, Outputs
from calque.program.sources import IncomingSource
from calque.upstream import torch_c

if TYPE_CHECKING:
    from calque.jitting.recording import TraceRecording

Tensor = torch.Tensor
_empty = torch_c.acc.create_empty_tensor
_hooks = torch_c.autograd._top_saved_tensors_default_hooks


class Carrying:
    """Attaches the graph to the tensors of each call.

    Args:
        backward: the traced backward pass.
        late: the gradient program of each part; None for parts without gradients.

    Attributes:
        bare: creates each tensor without its graph.
        errors: functions that give the tensors whose graph was freed a graph that raises an error,
            by index.
    """

    def __init__(self, backward: Backward, late: list[LatePart | None]) -> None:
        self.gives_gradients: bool = any(late)
        self.bare: list[Fresh | Blank] = backward.bare
        self._nodes = [
            ReplayNode(part, one, [backward.forms[slot] for slot in part.results])
            for part, one in zip(backward.parts, late, strict=True)
        ]
        self.errors: dict[int, SpentGraph] = {
            slot: SpentGraph(message, *backward.forms[slot])
            for slot, message in backward.errors.items()
        }

    @property
    def has_errors_only(self) -> bool:
        """Returns True if the graphs of all tensors have been freed."""
        return not self._nodes and self.errors.keys() == set(range(len(self.bare)))

    def carry(self, outputs: Outputs, residuals: list[Array], origin: Any) -> None:
        """Create the tensors of a call that have a graph.

        Args:
            outputs: the outputs of the call.
            residuals: the residuals of the forward pass.
            origin: what derivatives of the gradients need (see `higher_order.SavedValues`).
        """
        carried = outputs.carried = [bare.bare(outputs) for bare in self.bare]
        for slot, error in self.errors.items():
            carried[slot] = error(carried[slot])
        for node in self._nodes:
            node.carry(outputs, residuals, origin)


def carrying(
    recording: "TraceRecording", backward: Backward
) -> tuple[ClosedJaxpr, Carrying, list[int]]:
    """Cut the jaxpr of a trace.

    Returns:
        The forward program, the `Carrying` of its tensors, and the positions of its inputs.
    """
    inputs = recording.inputs
    slots = {
        one.source.slot: place
        for place, one in enumerate(inputs)
        if isinstance(one.source, IncomingSource)
    }
    parts = [part for part in backward.parts if part.gradients]
    incoming = [[slot for slot in part.results if slot in slots] for part in parts]
    rows = [
        ([slots[slot] for slot in own], len(part.gradients))
        for own, part in zip(incoming, parts, strict=True)
    ]
    forward, lates, kept = split(recording.jaxpr, rows, recording.n_outputs)
    found = map(LatePart, lates, incoming, parts)
    late = [next(found) if part.gradients else None for part in backward.parts]
    for part in parts:
        part.gradients = []
    return forward, Carrying(backward, late), kept


class ReplayNode:
    """The autograd node of one part of the tensors."""

    def __init__(
        self, part: TracedPart, late: LatePart | None, forms: list[tuple[Any, torch.dtype]]
    ) -> None:
        self.step: DerivativeStep = DerivativeStep(part.number, tuple(part.results))
        self.late = late
        self._receivers = part.receivers
        self.order: list[int] = part.order[::-1]
        self._watched = part.watched
        self._by = part.by
        self.forms = forms
        self.saves: bool = part.saves

    def carry(self, outputs: Outputs, residuals: list[Array], origin: Any) -> None:
        """Attach the graph to its tensors."""
        carried, late, slots = outputs.carried, self.late, self.step.results
        targets = [one.build(outputs) for one in self._receivers]
        if not any(target.requires_grad for target in targets):
            if origin is not None and origin.path:  # gradients that depend only on incoming ones
                return
            targets.append(_anchor())  # the targets may have changed since the trace
        results = [carried[slot] for slot in slots]
        watched = [one.build(outputs) for one in self._watched]
        own = [] if late is None else late.needed(residuals)
        call = NodeCall(self, results, KeptValues(own, targets, origin), watched)
        if origin is not None and origin.path:
            live = {i for by, t in zip(self._by, targets) if t.requires_grad for i in by}
            call.plain = [result for i, result in enumerate(results) if i not in live]
        given = _in_order(targets, self.order) if self.order else targets
        for slot, tensor in zip(slots, _apply(call, *given), strict=True):
            carried[slot] = tensor


class KeptValues(NamedTuple):
    """The values that a call keeps for the backward pass of a node.

    Attributes:
        residuals: the values that the forward saved.
        targets: the tensors that receive gradients.
        origin: the values for derivatives of the gradients.
    """

    residuals: list[Array]
    targets: list[Tensor]
    origin: Any


class NodeCall:
    """A call of a node.

    Args:
        node: the node.
        results: its results.
        kept: the values that it keeps.
        watched: the tensors that must not be written to before the backward pass.

    Attributes:
        plain: the results that depend on nothing that has a gradient.
    """

    def __init__(
        self, node: ReplayNode, results: list[Tensor], kept: KeptValues, watched: list[Tensor]
    ) -> None:
        self._node = node
        self._results = results
        self._kept: KeptValues | None = kept
        self._watched = watched
        self._is_seen = False
        self.plain: list[Tensor] = []

    def begin(self, ctx: Any) -> tuple[Tensor, ...]:
        """Save the kept values with PyTorch, and pass the results to the caller."""
        results, self._results = self._results, []
        if self.plain:
            ctx.mark_non_differentiable(*self.plain)
            self.plain = []
        watched, self._watched = self._watched, []
        kept = self._kept
        assert kept is not None
        if _hooks(False) is not None:
            # The user's hooks must see each kept tensor.
            self._is_seen = True
            self._kept = None
            ctx.save_for_backward(*map(wrap, kept.residuals))
        elif kept.residuals:
            self._kept = None
            ctx.save_for_backward(_boxed(kept), *watched)
        return tuple(results)

    def _found(self, ctx: Any) -> KeptValues:
        if self._kept is not None and not self._node.saves:  # so nothing can have been freed
            return self._kept
        saved = ctx.saved_tensors
        if self._is_seen:
            return KeptValues([read(tensor) for tensor in saved], [], None)
        return self._kept or _unboxed(saved[0])

    def gradients(self, ctx: Any, incoming: tuple[Tensor | None, ...]) -> list[Any]:
        """Returns the gradients of the node's inputs.

        Raises:
            RuntimeError: the kept values were freed, or a needed tensor was written to.
        """
        late = self._node.late
        if late is None:
            return []
        kept = self._found(ctx)
        if not torch.is_grad_enabled():
            return late(kept.residuals, incoming)
        try:
            _check_unchanged(ctx, kept, self._node.order)
            found = self._differentiable(kept, incoming)
        except RuntimeError as error:
            with torch.no_grad():
                plain = late(kept.residuals, incoming)
            # A function of everything on which it may depend, so that every derivative raises.
            others = [t for t in (*kept.targets, *incoming) if t is not None and t.requires_grad]
            return [
                None if g is None else _failing(str(error), g.requires_grad_(), others)
                for g in plain
            ]
        return late.reached(found, incoming)

    def _differentiable(
        self, kept: KeptValues, incoming: tuple[Tensor | None, ...]
    ) -> list[Tensor]:
        given = [
            torch.zeros(shape, dtype=dtype, device="jax") if gradient is None else gradient
            for gradient, (shape, dtype) in zip(incoming, self._node.forms, strict=True)
        ]
        return kept.origin.differentiable(self._node.step, kept.targets, given)


class Replay(torch.autograd.Function):
    """The node."""

    @staticmethod
    def forward(ctx: Any, call: NodeCall, *targets: Tensor) -> Any:
        """Attach the graph to the tensors of a call."""
        ctx.set_materialize_grads(False)
        ctx.call = call
        return call.begin(ctx)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> Any:
        """Run the backward program on the residuals."""
        found = ctx.call.gradients(ctx, incoming)
        others = len(ctx.needs_input_grad) - 1 - len(found)  # for the anchor
        return None, *found, *[None] * others


# Like `Replay.apply`, without its check for `torch.func` transforms, in which no program runs.
_apply: Any = super(torch.autograd.Function, Replay).apply  # type: ignore[misc]


def _in_order(targets: list[Tensor], order: list[int]) -> list[Tensor]:
    """Returns the targets, some of them as aliases that receive their gradients one after the
    other, the last first: PyTorch runs the node that was created last.
    """
    given = list(targets)
    for index in order:
        given[index] = torch.ops.aten.alias.default(targets[index])
    return given


def _failing(message: str, gradient: Tensor, others: list[Tensor]) -> Tensor:
    """Returns a gradient whose derivatives with respect to some tensors raise an error."""
    error = torch_c.functions.DelayedError(message, 1 + len(others))
    found = error(gradient, *others)
    return found[0] if others else found


def _check_unchanged(ctx: Any, kept: KeptValues, order: list[int]) -> None:
    """Raise RuntimeError if derivatives of gradients would not match the gradients."""
    if kept.origin is None:
        raise RuntimeError(
            "calque.jit cannot take the derivative of gradients under hooks for saved tensors"
        )
    for index, (target, edge) in enumerate(zip(kept.targets, ctx.next_functions, strict=True)):
        if index in order and edge[0] is not None:
            (edge,) = edge[0].next_functions
        if edge[0] is not None and get_gradient_edge(target)[:2] != edge:
            raise RuntimeError(
                "calque.jit cannot take the derivative of gradients of a tensor of shape "
                f"{tuple(target.shape)} that was written in place since the call"
            )


def _boxed(kept: KeptValues) -> Tensor:
    """Returns a tensor that holds the kept values,
    so that PyTorch frees them like saved tensors.
    """
    box = _empty((), torch.float32)
    box.untyped_storage().kept = kept
    return box


def _unboxed(box: Tensor) -> KeptValues:
    return box.untyped_storage().kept  # type: ignore[attr-defined]


@functools.cache
def _anchor() -> Tensor:
    """Returns a leaf, for nodes without inputs from the caller."""
    return torch.empty(0, device="jax", requires_grad=True)
