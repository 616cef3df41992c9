"""Tensors from outside whose autograd history a traced function reads or changes.

A function may write values with gradients into an argument, and a backward pass in it may reach
tensors computed before the call. A trace has no lasting effect on either; each call applies the
effects.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from calque.errors import TraceError, unrepeatable
from calque.jitting.host_tensors import written
from calque.program.gradients.graph_boundary import Border, has_graph, is_leaf, node_of
from calque.program.gradients.segments import segments
from calque.upstream import torch_c
from calque.upstream.torch_internals import tree_leaves

Tensor = torch.Tensor


class HistoryBorder(torch.autograd.Function):
    """The autograd node at the boundary of an argument that has an autograd graph."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor) -> Tensor:
        """Returns a tensor that is not a leaf, like the argument."""
        ctx.received = []
        ctx.save_for_backward(torch.empty(0, device="cpu"))
        return leaf.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> None:
        """Record the gradient that a backward pass inside the function computes."""
        ctx.received.append(gradient)


def entered(inside: Tensor, argument: Tensor) -> Tensor:
    """Returns a tensor like the argument that it represents: a leaf, or a non-leaf."""
    inside.requires_grad_(argument.requires_grad)
    if argument.is_leaf or torch.is_inference_mode_enabled():
        return inside
    with torch.enable_grad():
        return HistoryBorder.apply(inside)


def sequence() -> int:
    """Returns the sequence number of the next autograd node in this thread."""
    with torch.inference_mode(False), torch.enable_grad():
        node = torch.empty(0, requires_grad=True, device="cpu").view(0).grad_fn
    assert node is not None
    return node._sequence_nr()  # type: ignore[attr-defined]


class Histories:
    """The histories of tensors from outside in one trace.

    Attributes:
        border: the tensors that have a history.
    """

    def __init__(self) -> None:
        self.border: Border = Border()
        self._started = sequence()
        self._leaves: dict[int, Tensor] = {}
        self._entries: dict[int, Tensor] = {}

    def is_older(self, tensor: Tensor) -> bool:
        """Returns True if a non-leaf tensor was computed before the trace."""
        node = node_of(tensor)
        return node is not None and node._sequence_nr() < self._started

    def know(self, tensor: Tensor) -> None:
        """Record a tensor from outside."""
        if has_graph(tensor):
            self.border.add(tensor)
        elif is_leaf(tensor):
            self._leaves[id(tensor)] = tensor

    def know_arguments(self, stand_ins: Iterable[Any]) -> None:
        """Record the tensors that represent the arguments."""
        for index, tensor in enumerate(stand_ins):
            if isinstance(tensor, Tensor) and tensor.device.type == "jax":
                self.know(tensor)
                if type(tensor.grad_fn) is HistoryBorder._backward_cls:
                    self._entries[index] = tensor

    def check_operator(self, func: Any, args: object, kwargs: object) -> None:
        """Check an operator that is about to run.

        Raises:
            TraceError: it changes a tensor's history in a way that a program could not repeat.
        """
        if not func._schema.is_mutable or not torch.is_grad_enabled():
            return
        given = tree_leaves((args, kwargs))
        if any(isinstance(t, Tensor) and t.requires_grad for t in given):
            for tensor in written(func, args, kwargs):
                if isinstance(tensor, Tensor) and not self._is_free(tensor):
                    raise unrepeatable(
                        f"a tensor of shape {tuple(tensor.shape)} from outside calque.jit, which "
                        "is a view or has an autograd graph, is written to with gradients",
                        "which the compiled program could not repeat",
                        "Pass it as an argument, or write it under torch.no_grad().",
                    )

    def _is_free(self, tensor: Tensor) -> bool:
        """Returns True if a tensor's history may change even if it is from outside."""
        if id(tensor) in self._leaves:
            return not tensor._is_view()
        if tensor._is_view() and tensor not in self.border:
            assert tensor._base is not None
            tensor = tensor._base
        return tensor not in self.border or any(tensor is one for one in self._entries.values())

    def changed(self) -> list[Tensor]:
        """Returns the tensors from outside whose history has changed."""
        entries = self._entries.values()
        edges = [(t, get_gradient_edge(t)[:2], self.border.edge(t)[:2]) for t in entries]
        return self._changed() + [t for t, now, before in edges if now != before]

    def _changed(self) -> list[Tensor]:
        """Returns the leaves from outside that are no longer leaves."""
        leaves = self._leaves.values()
        return [t for t in leaves if not t._is_view() and t.grad_fn is not None]

    def forget(self, keys: Iterable[int]) -> None:
        """Release leaves, by id."""
        for key in keys:
            self._leaves.pop(key, None)

    def restore(self) -> None:
        """Undo the trace's changes to tensors from outside."""
        for tensor in self._changed():
            tensor.detach_()

    def passed(
        self, leaves: list[Any], is_known: Callable[[Tensor], bool]
    ) -> list[tuple[int, Tensor, bool]]:
        """Returns the gradients that backward passes in the function compute for arguments whose
        autograd graph is from outside.

        Returns:
            The index of the argument, the gradient, and whether the graph is kept.

        Raises:
            TraceError: the function may read the gradients further back in these graphs.
        """
        found = []
        for index, tensor in self._entries.items():
            node: Any = self.border.edge(tensor).node
            if not node.received:
                continue
            if any(map(is_known, _leaves_behind(leaves[index]))) or any(
                map(has_graph, node.received)
            ):
                raise TraceError(
                    f"backward() inside calque.jit reaches argument {index}, which was computed "
                    "outside from tensors that the function also uses: detach it, or compute it "
                    "inside"
                )
            with torch.no_grad():
                total = node.received[0].clone()
                for gradient in node.received[1:]:
                    total += gradient
            found.append((index, total, _is_kept(node)))
            node.received = []
        return found


@contextmanager
def without_saved_hooks() -> Iterator[None]:
    """A context manager without the outer hooks for saved tensors, because a trace saves no
    values.
    """
    hooks = []
    while (found := torch_c.autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(found)
        torch_c.autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pair in reversed(hooks):
            torch_c.autograd._push_saved_tensors_default_hooks(*pair)


def _is_kept(node: Any) -> bool:
    """Returns True if a node still has its saved tensors, because all backward passes kept the
    graph.
    """
    try:
        node.saved_tensors  # noqa: B018
    except RuntimeError:
        return False
    return True


def _leaves_behind(tensor: Tensor) -> list[Tensor]:
    (segment,) = segments([tensor], ())
    return [node.variable for node, _ in segment.ends]
