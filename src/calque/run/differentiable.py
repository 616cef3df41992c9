"""Results that carry gradients: a jitted forward whose backward is one XLA program too.

When a traced function returns tensors that require a gradient and whose graph is still there, the
backward is traced right behind the forward, by torch's own autograd, and the jaxpr is cut in two:
what does not need the incoming gradients runs in the forward and leaves its values behind.
"""

import logging
from collections.abc import Iterable
from typing import Any

import torch
from jax import Array
from torch.autograd.function import once_differentiable

from calque.device.cell import read, wrap, x64
from calque.diagnostics import CalqueError
from calque.run.lifting import Lifting
from calque.run.results import Argument, Description, Existing, Fresh

logger = logging.getLogger("calque.jit")


class Backward:
    """The traced backward.

    Attributes:
        outputs: the leaves of the result that carry gradients, by index.
        targets: the tensors that receive gradients.
        gradients: the traced gradients, one for each target that gets one.
        receivers: where each call finds the targets.
    """

    receivers: list[Existing | Argument]

    def __init__(
        self,
        outputs: list[int],
        targets: list[torch.Tensor],
        gradients: list[Array],
    ) -> None:
        self.outputs = outputs
        self.targets = targets
        self.gradients = gradients

    def forget(self) -> None:
        """Let go of what only the trace needed."""
        self.targets, self.gradients = [], []


def trace_backward(
    lifting: Lifting,
    leaves: list[Any],
    results: list[Description],
    tensors: Iterable[torch.Tensor],
    stand_ins: list[Any],
) -> Backward | None:
    """Trace the gradients of the results; None if none carry any, or their graph is freed."""
    outputs = [
        i
        for i, (leaf, result) in enumerate(zip(leaves, results, strict=True))
        if isinstance(result, Fresh) and carrying(leaf)
    ]
    if not outputs:
        return None
    candidates = {id(t): t for t in tensors if t.requires_grad}
    candidates.update(
        (id(t), t) for t in stand_ins if isinstance(t, torch.Tensor) and t.requires_grad
    )
    targets = list(candidates.values())
    try:
        found = gradients_of(lifting, [leaves[i] for i in outputs], targets)
    except CalqueError:
        raise
    except RuntimeError as error:
        # The function used its graph up itself: backward() outside would fail in eager mode too.
        logger.debug("the results carry no gradients: %s", error)
        return None
    pairs = [(t, g) for t, g in zip(targets, found, strict=True) if g is not None]
    if not pairs:
        return None
    return Backward(outputs, [t for t, _ in pairs], [read(g) for _, g in pairs])


def carrying(tensor: Any) -> bool:
    """Whether a result has a graph behind it."""
    return isinstance(tensor, torch.Tensor) and tensor.requires_grad and tensor.grad_fn is not None


def gradients_of(
    lifting: Lifting, outputs: list[torch.Tensor], targets: list[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of the targets, for incoming gradients that are inputs of the trace."""
    incoming = [
        wrap(lifting.new_input("incoming", position, output.shape, read(output).dtype))
        for position, output in enumerate(outputs)
    ]
    return torch.autograd.grad(outputs, targets, incoming, allow_unused=True)


class Replay(torch.autograd.Function):
    """One call of a differentiable program, as a node of torch's graph."""

    @staticmethod
    def forward(ctx: Any, call: Any, backward: Any, *targets: torch.Tensor) -> Any:
        """Run the forward; the results are those that carry gradients."""
        carrying, ctx.residuals = call()
        ctx.program = backward
        return tuple(carrying)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: torch.Tensor) -> Any:
        """Run the backward on the residuals."""
        with x64():
            gradients = ctx.program(ctx.residuals, [read(g) for g in incoming])
        return None, None, *[wrap(g) for g in gradients]
