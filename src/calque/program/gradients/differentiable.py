"""Programs with gradients: a jitted forward pass, and a backward pass that is also an XLA program.

If a traced function returns or stores tensors with an autograd graph, the backward pass is traced
right after the forward pass, by PyTorch's autograd, and the jaxpr is cut in two: everything that
does not need the incoming gradients runs in the forward pass, which keeps residuals for the
backward pass.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jax import Array
from torch.autograd.graph import GradientEdge, get_gradient_edge

from calque.device.memory.cell import read
from calque.device.memory.wrapping import wrap
from calque.errors import CalqueError
from calque.program.gradients.escaping_tensors import Blank, Carried, Carrier
from calque.program.gradients.freed import freed, saves
from calque.program.gradients.graph_boundary import (
    Border,
    Edge,
    arrivals,
    blocked,
    is_hooked,
    is_leaf_node,
)
from calque.program.gradients.segments import Segment, segments
from calque.program.lifting import Lifting
from calque.program.results import Description, Fresh
from calque.program.sources import IncomingSource

logger: logging.Logger = logging.getLogger("calque.jit")
_REENTRANT = "torch.utils.checkpoint is incompatible with .grad()"
Tensor = torch.Tensor


class TracedPart:
    """The traced backward pass of some of the tensors (see `segments`).

    Attributes:
        number: which segment it is.
        results: which tensors, by index.
        receivers: where each call finds the tensors that receive gradients.
        by: for each of them, the results (by place) that it was used for.
        gradients: their traced gradients; none after the trace.
        watched: the tensors whose values it needs, as they are after the forward.
        order: the receivers with hooks, by index, in the order in which the hooks run; empty if
            it is any.
        whole: what is to be said where only some of the results go backward; empty if any may.
        saves: whether PyTorch's graph saves values, which its backward pass frees.
    """

    def __init__(self, number: int, results: list[int]) -> None:
        self.number = number
        self.results = results
        self.whole: str = ""
        self.receivers: list[Description] = []
        self.by: list[frozenset[int]] = []
        self.gradients: list[Array] = []
        self.watched: list[Description] = []
        self.order: list[int] = []
        self.saves: bool = False

    def receive(
        self, ends: "list[SegmentEnd]", found: Sequence[Tensor | None]
    ) -> dict[torch.autograd.graph.Node, int]:
        """Add the gradients found at some edges; returns the index of each receiver by its node."""
        places: dict[torch.autograd.graph.Node, int] = {}
        for end, gradient in zip(ends, found, strict=True):
            if gradient is not None:
                places[end.edge.node] = len(self.receivers)
                self.receivers.append(end.place)
                self.by.append(frozenset(i for i, s in enumerate(self.results) if s in end.by))
                self.gradients.append(read(gradient))
        return places


class Backward:
    """The traced backward pass.

    Attributes:
        bare: creates each tensor with gradients, without its graph.
        forms: the shape and dtype of each.
        errors: the error message of a backward pass, by index, for tensors whose graph was freed.
        parts: the parts for the other tensors, in order of dependency.
    """

    def __init__(self, carriers: Sequence[Carrier]) -> None:
        self.bare: list[Fresh | Blank] = [carrier.bare for carrier in carriers]
        self.forms: list[tuple[torch.Size, torch.dtype]] = [
            (one.tensor.shape, one.tensor.dtype) for one in carriers
        ]
        self.errors: dict[int, str] = {}
        self.parts: list[TracedPart] = []

    @property
    def gradients(self) -> list[Array]:
        """The traced gradients of all parts."""
        return [gradient for part in self.parts for gradient in part.gradients]


class TraceBoundary(NamedTuple):
    """The ends of a trace's autograd graph.

    Attributes:
        border: the boundary tensors.
        edges: the edges where it ends, in addition to leaves.
        place: returns how each call finds the tensor of such an edge; None if nothing outside
            refers to it.
    """

    border: Border
    edges: Collection[Edge]
    place: Callable[[Edge], Description | None]


def trace_backward(
    lifting: Lifting, carriers: Sequence[Carrier], around: TraceBoundary
) -> Backward | None:
    """Trace the gradients of a function's results and other remaining tensors; returns None if
    there are none.

    Args:
        lifting: the trace.
        carriers: the tensors with an autograd graph.
        around: the ends of the graph.
    """
    if not carriers:
        return None
    backward = Backward(carriers)
    tensors = [carrier.tensor for carrier in carriers]
    for number, segment in enumerate(segments(tensors, around.edges)):
        leaves = [node for node, _ in segment.ends if is_leaf_node(node)]
        hooked = [node for node in leaves if is_hooked(node.variable)]
        with cut(tensors, segment, around) as ends:
            goals = {(end.edge.node, end.edge.output_nr) for end in ends}
            for slot in sorted(segment.results):
                said = freed(tensors[slot].grad_fn, goals, segment.ends)
                if said is not None:
                    backward.errors[slot] = said
            alive = [slot for slot in sorted(segment.results) if slot not in backward.errors]
            seen = [end for end in ends if end.edge.node in hooked or end.edge.node not in leaves]
            for slots in _apart(alive, seen):
                with arrivals(node.variable for node in hooked) as arrived:
                    edges = [end.edge for end in ends]
                    found = _gradients(lifting, tensors, slots, edges, backward.errors)
                part = TracedPart(number, [slot for slot in slots if slot not in backward.errors])
                starts = [tensors[slot].grad_fn for slot in part.results]
                part.saves = any(saves(start, goals, segment.ends) for start in starts)
                places = part.receive(ends, found)
                if len(hooked) > 1:
                    nodes = (hooked[index] for index in dict.fromkeys(arrived))
                    part.order = [places[node] for node in nodes if node in places]
                if part.results:
                    backward.parts.append(part)
    return backward


def _apart(slots: list[int], seen: "list[SegmentEnd]") -> list[list[int]]:
    """Returns the tensors whose backward passes share a node: each alone if only some reach an end
    where hooks may run, because PyTorch calls these, with None, wherever a node has an edge.
    """
    if any(not end.by.issuperset(slots) for end in seen):
        return [[slot] for slot in slots]
    return [slots]


class SegmentEnd(NamedTuple):
    """An edge where a segment ends.

    Attributes:
        edge: the edge.
        place: how each call finds its tensor.
        by: the indexes of the segment's tensors that depend on it.
    """

    edge: GradientEdge
    place: Description
    by: set[int]


@contextmanager
def cut(
    tensors: list[Tensor], segment: Segment, around: TraceBoundary
) -> Iterator[list[SegmentEnd]]:
    """A context manager in which no gradient passes the ends of a segment; yields the ends."""
    own: dict[Edge, int] = {}
    for slot, tensor in enumerate(tensors):
        own.setdefault((tensor.grad_fn, tensor.output_nr), slot)
    ends: list[SegmentEnd] = []
    for (node, number), by in segment.ends.items():
        slot = own.get((node, number))
        place = around.place((node, number)) if slot is None else Carried(slot)
        if place is not None:
            ends.append(SegmentEnd(GradientEdge(node, number), place, by))
    others = [edge for edge, slot in own.items() if slot not in segment.results]
    leaves = [node.variable for node, _ in segment.ends if is_leaf_node(node)]
    ready = [tensors[own[edge]] for edge in others]
    inner = [edge for edge in around.edges if not is_leaf_node(edge[0])]
    with around.border.silent([*leaves, *ready]), blocked([*inner, *others]):
        yield ends


def _gradients(
    lifting: Lifting,
    tensors: list[Tensor],
    slots: list[int],
    edges: list[GradientEdge],
    errors: dict[int, str],
) -> Sequence[Tensor | None]:
    """Returns the gradients at some edges, and records the tensors whose graph is freed."""
    if not (edges and slots):
        return [None] * len(edges)
    incoming = {slot: _incoming(lifting, slot, tensors[slot]) for slot in slots}

    def run(slots: list[int]) -> Sequence[Tensor | None]:
        return torch.autograd.grad(
            [tensors[slot] for slot in slots],
            edges,
            [incoming[slot] for slot in slots],
            retain_graph=True,
            allow_unused=True,
        )

    alive = list(slots)
    while alive:
        try:
            return run(alive)
        except CalqueError:
            raise
        except RuntimeError as error:
            # The function itself has freed the graph, so a backward pass fails in eager mode too.
            logger.debug("some results carry no gradients: %s", error)
            if len(alive) == 1:
                errors[alive.pop()] = _explained(error)
        for slot in list(alive):
            try:
                run([slot])
            except CalqueError:
                raise
            except RuntimeError as error:
                errors[slot] = _explained(error)
                alive.remove(slot)
    _drop_what_is_queued()
    return [None] * len(edges)


def _explained(error: RuntimeError) -> str:
    """Returns the message for a later `backward()`."""
    if _REENTRANT not in str(error):
        return str(error)
    return (
        "torch.utils.checkpoint(..., use_reentrant=True) was called in a jitted function, whose "
        "result has no gradients outside of it: call backward() in the jitted function as well, or "
        "use use_reentrant=False"
    )


def _drop_what_is_queued() -> None:
    """Free the nodes that a failed backward pass did not reach, and their tensors.

    PyTorch's engine keeps them in the thread's queue until its next backward pass.
    """
    with torch.enable_grad():
        one = torch.ones((), device="cpu", requires_grad=True)
        torch.autograd.grad(one * 1, one)


def gradients_of(
    lifting: Lifting, outputs: list[Tensor], targets: list[Tensor]
) -> tuple[Sequence[Tensor | None], dict[int, str]]:
    """Returns the gradients of the targets, for incoming gradients that are inputs of the trace.

    Also returns the error messages for outputs whose graph was freed, by index.
    """
    errors: dict[int, str] = {}
    edges = [get_gradient_edge(target) for target in targets]
    found = _gradients(lifting, outputs, list(range(len(outputs))), edges, errors)
    return found, errors


def _incoming(lifting: Lifting, index: int, output: Tensor) -> Tensor:
    return wrap(lifting.new_input(IncomingSource(index), output.shape, read(output).dtype))
