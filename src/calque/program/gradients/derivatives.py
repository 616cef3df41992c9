"""Derivatives of gradients: `create_graph=True` through a program that carries gradients.

A program's backward is one XLA program, which PyTorch's autograd does not see. So when a graph of
the gradients is requested, the function is traced again, in its state at the trace of the program:
the gradients are now the results, and their own backward is traced after them.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from calque.device.memory.cell import read
from calque.device.memory.wrapping import wrap
from calque.program.gradients.border import Edge
from calque.program.gradients.differentiable import Surroundings, cut
from calque.program.gradients.segments import segments
from calque.program.lifting import Lifting
from calque.program.results import Argument, Description
from calque.program.sources import GivenSource

Tensor = torch.Tensor


class Step(NamedTuple):
    """One step of differentiation: which gradients are taken.

    Attributes:
        number: of which segment.
        results: of which tensors, by index.
    """

    number: int
    results: tuple[int, ...]


class Derived(NamedTuple):
    """The gradients that a path of steps leads to.

    Attributes:
        gradients: they.
        around: where their graph ends: at the inputs of the last step's node, which are the tensors
            that received its gradients and then the gradients that came in.
    """

    gradients: list[Tensor]
    around: Surroundings


def derive(
    lifting: Lifting, tensors: list[Tensor], around: Surroundings, path: Sequence[Step]
) -> Derived:
    """Returns the gradients at the end of a path, with their own graph.

    Args:
        lifting: the trace; what comes in are inputs of kind "given".
        tensors: what carries gradients.
        around: where their graph ends.
        path: the steps, from the function's own results on.
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
        rows = [(e.edge, g) for e, g in zip(ends, found, strict=True) if g is not None]
        inputs: dict[Edge, int] = {}
        for index, (edge, _) in enumerate(rows):
            inputs[edge.node, edge.output_nr] = index
        leaves = {id(leaf): len(rows) + index for index, leaf in enumerate(incoming)}
        edges = dict.fromkeys([*around.edges, *segment.ends, *inputs])
        around = Surroundings(around.border, edges, _placing(inputs, leaves))
        tensors = [gradient for _, gradient in rows]
    return Derived(tensors, around)


def _given(lifting: Lifting, source: GivenSource, like: Tensor) -> Tensor:
    """Returns an incoming gradient as an input of the program and a leaf of the graph."""
    return wrap(lifting.new_input(source, like.shape, read(like).dtype)).requires_grad_()


def _placing(
    inputs: dict[Edge, int], leaves: dict[int, int]
) -> Callable[[Edge], Description | None]:
    def place(edge: Edge) -> Description | None:
        index = inputs.get(edge)
        if index is None:
            index = leaves.get(id(getattr(edge[0], "variable", None)))
        return None if index is None else Argument(index)

    return place
