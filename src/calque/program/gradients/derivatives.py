"""Derivatives of gradients, for `create_graph=True` through a program with gradients.

The backward pass of a program is one XLA program, which is opaque to autograd. So when a graph of
the gradients is requested, the function is traced again, in its state when the program was traced.
Now the gradients are the results, and their own backward pass is traced after them.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from calque.device.memory.cell import read
from calque.device.memory.wrapping import wrap
from calque.program.gradients.differentiable import TraceBoundary, cut
from calque.program.gradients.graph_boundary import Edge
from calque.program.gradients.segments import segments
from calque.program.lifting import Lifting
from calque.program.results import Description, OwnTensor
from calque.program.sources import GivenSource

Tensor = torch.Tensor


class DerivativeStep(NamedTuple):
    """One step of differentiation.

    Attributes:
        number: the number of the segment.
        results: the indexes of the differentiated tensors.
    """

    number: int
    results: tuple[int, ...]


class Derived(NamedTuple):
    """The gradients at the end of a path of steps.

    Attributes:
        gradients: the gradients.
        around: the ends of their graph: the inputs of the last step's node, which are the tensors
            that received its gradients, followed by the incoming gradients.
    """

    gradients: list[Tensor]
    around: TraceBoundary


def derive(
    lifting: Lifting, tensors: list[Tensor], around: TraceBoundary, path: Sequence[DerivativeStep]
) -> Derived:
    """Returns the gradients at the end of a path, with their own graph.

    Args:
        lifting: the trace, in which incoming gradients are `GivenSource` inputs.
        tensors: the tensors with gradients.
        around: the ends of their graph.
        path: the steps, starting from the function's own results.
    """
    for depth, step in enumerate(path):
        segment = segments(tensors, around.edges)[step.number]
        incoming = [
            _given(lifting, GivenSource(depth, place), tensors[slot])
            for place, slot in enumerate(step.results)
        ]
        with cut(tensors, segment, around) as ends, torch.enable_grad():
            found = torch.autograd.grad(
                [tensors[slot] for slot in step.results],
                [end.edge for end in ends],
                incoming,
                create_graph=True,
                allow_unused=True,
            )
            # An incoming gradient that is passed on is a leaf, and needs a node of its own.
            found = [g.clone() if any(g is one for one in incoming) else g for g in found]
        rows = [(e.edge, g) for e, g in zip(ends, found, strict=True) if g is not None]
        inputs: dict[Edge, int] = {}
        for index, (edge, _) in enumerate(rows):
            inputs[edge.node, edge.output_nr] = index
        leaves = {id(leaf): len(rows) + index for index, leaf in enumerate(incoming)}
        edges = dict.fromkeys([*around.edges, *segment.ends, *inputs])
        around = TraceBoundary(around.border, edges, _placing(inputs, leaves))
        tensors = [gradient for _, gradient in rows]
    return Derived(tensors, around)


def _given(lifting: Lifting, source: GivenSource, like: Tensor) -> Tensor:
    """Returns an incoming gradient, as an input of the program and a leaf of the graph."""
    return wrap(lifting.new_input(source, like.shape, read(like).dtype)).requires_grad_()


def _placing(
    inputs: dict[Edge, int], leaves: dict[int, int]
) -> Callable[[Edge], Description | None]:
    def place(edge: Edge) -> Description | None:
        index = inputs.get(edge)
        if index is None:
            index = leaves.get(id(getattr(edge[0], "variable", None)))
        return None if index is None else OwnTensor(index)

    return place
