"""The boundary of a traced function's autograd graph: the tensors that existed before it ran.

Gradients flow from the function's results back to these. Some are leaves; others have a graph
outside the program, and the function's graph ends where that begins.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from calque.upstream import torch_c

Tensor = torch.Tensor
Edge = tuple[Any, int]
"""A node of PyTorch's graph, and the index of its output."""


def node_of(tensor: Tensor) -> Any:
    """Returns the autograd node of a tensor; None if it has none, or PyTorch forbids access.

    PyTorch forbids access for a view created under no_grad whose base was written with gradients.
    """
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def origin_of(tensor: Tensor) -> Any:
    """Returns the autograd node that computed a tensor, or the tensor that it is a view of.

    The node of a view is made anew whenever the memory was written to, even without gradients.
    """
    with torch_c.DisableTorchFunction():
        return node_of(tensor if tensor._base is None else tensor._base)


def is_leaf(tensor: Tensor) -> bool:
    """Returns True for a leaf tensor; False if PyTorch forbids the query."""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


def has_graph(value: object) -> bool:
    """Returns True if a value is a tensor with an autograd graph."""
    return isinstance(value, Tensor) and value.requires_grad and node_of(value) is not None


def is_hooked(value: object) -> bool:
    """Returns True for a leaf of the autograd graph that has hooks."""
    return (
        isinstance(value, Tensor)
        and value.requires_grad
        and value.is_leaf
        and bool(value._backward_hooks or value._post_accumulate_grad_hooks)
    )


class Border:
    """The tensors from outside that have their own autograd graphs."""

    def __init__(self) -> None:
        self.tensors: dict[Edge, Tensor] = {}
        self._edges: dict[int, GradientEdge] = {}

    def add(self, tensor: Tensor) -> None:
        """Record a tensor before the function changes it."""
        if id(tensor) not in self._edges:
            edge = self._edges[id(tensor)] = get_gradient_edge(tensor)
            self.tensors.setdefault((edge.node, edge.output_nr), tensor)

    def __contains__(self, tensor: object) -> bool:
        return id(tensor) in self._edges

    def edge(self, tensor: Tensor) -> GradientEdge:
        """Returns the edge that a tensor had when it was added."""
        return self._edges[id(tensor)]

    @contextmanager
    def silent(self, others: Iterable[Tensor]) -> Iterator[None]:
        """A context manager in which the hooks of boundary tensors do not run, because they run
        when the gradient leaves the program.

        Args:
            others: the other tensors at which a backward pass ends.
        """
        tensors = list({id(t): t for t in (*self.tensors.values(), *others)}.values())
        hooks = [(t._backward_hooks, dict(t._backward_hooks)) for t in tensors if t._backward_hooks]
        kept = [(t, t.grad) for t in self.tensors.values() if t.retains_grad]
        for running, _ in hooks:
            running.clear()
        try:
            yield
        finally:
            for running, known in hooks:
                running.update(known)
            for tensor, gradient in kept:
                tensor.grad = gradient


@contextmanager
def arrivals(leaves: Iterable[Tensor]) -> Iterator[list[int]]:
    """A context manager that yields a list, to which a backward pass adds the index of each leaf
    when its gradient is complete.
    """
    arrived: list[int] = []
    removed: list[Callable[[], None]] = []
    for index, leaf in enumerate(leaves):
        had = leaf._backward_hooks
        removed.append(leaf.register_hook(lambda _, index=index: arrived.append(index)).remove)
        if had is None:
            removed.append(partial(setattr, leaf, "_backward_hooks", None))
    try:
        yield arrived
    finally:
        for remove in removed:
            remove()


@contextmanager
def blocked(edges: Iterable[Edge]) -> Iterator[None]:
    """A context manager in which no gradient passes the given edges."""
    numbers: dict[Any, set[int]] = {}
    for node, number in edges:
        numbers.setdefault(node, set()).add(number)
    handles = [node.register_prehook(_without(gone)) for node, gone in numbers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _without(gone: set[int]) -> Any:
    return lambda gradients: tuple(None if i in gone else g for i, g in enumerate(gradients))


def is_leaf_node(node: object) -> bool:
    """Returns True if an autograd node represents a leaf."""
    return type(node).__name__ == "AccumulateGrad"
