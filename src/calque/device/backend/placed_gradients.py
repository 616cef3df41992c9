"""Gives a gradient the placement of its parameter when it is accumulated.

PyTorch's engine accumulates gradients of leaves at special nodes. Before a backward pass, these
nodes get temporary hooks that place incoming gradients. No hook stays on a tensor, whose copies
would lose it.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jax.sharding import Sharding

from calque.device.kernels.constraint import constrained
from calque.device.memory.placing import keep_placement, placement_like
from calque.device.runtime.placement import is_same

Tensor = torch.Tensor


def placed_like(gradient: object, placement: Sharding) -> Any:
    """Returns a gradient with a placement; unchanged if it already has that, or is not a tensor."""
    if not isinstance(gradient, Tensor) or gradient.device.type != "jax":
        return gradient
    now = placement_like(gradient)
    if now is not None and is_same(now, placement, gradient.ndim):
        return gradient
    # The placement is recorded too, for tensors created like the gradient (optimizer state).
    return keep_placement(constrained(gradient, placement), placement)


@contextmanager
def placing(roots: Iterable[Any]) -> Iterator[None]:
    """A context manager in which gradients that reach leaves get the leaves' placements.

    Args:
        roots: the differentiated tensors.
    """
    with ExitStack() as stack:
        for node in _accumulating(roots):
            placement = placement_like(node.variable)
            if placement is not None:
                stack.callback(node.register_prehook(_hook(placement)).remove)
        yield


def _hook(placement: Sharding) -> Any:
    def place(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(placed_like(gradient, placement) for gradient in gradients)

    return place


def _accumulating(roots: Iterable[Any]) -> list[Any]:
    """Returns the nodes that accumulate gradients of leaves."""
    waiting = [_node_of(root) for root in roots]
    seen = {node for node in waiting if node is not None}
    waiting = list(seen)
    found = []
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable") and type(node).__name__ == "AccumulateGrad":
            found.append(node)
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    return found


def _node_of(root: object) -> Any:
    if not isinstance(root, Tensor):
        return getattr(root, "node", None)  # a torch.autograd.graph.GradientEdge
    if root.grad_fn is None and root.requires_grad:
        return torch.autograd.graph.get_gradient_edge(root).node
    return root.grad_fn


def run_placing(run: Any, roots: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs PyTorch's engine in a process that uses placements.

    Args:
        run: the engine.
        roots: the differentiated tensors.
        args, kwargs: the rest of its arguments.
    """
    if kwargs.get("accumulate_grad", True):
        with placing(roots):
            return run(roots, *args, **kwargs)
    inputs = args[3] if len(args) > 3 else kwargs.get("inputs", ())
    found = run(roots, *args, **kwargs)
    placements = [placement_like(x) if isinstance(x, Tensor) else None for x in inputs]
    return tuple(
        gradient if placement is None else placed_like(gradient, placement)
        for gradient, placement in zip(found, placements, strict=True)
    )
