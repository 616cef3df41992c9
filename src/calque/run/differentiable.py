"""Results that carry gradients: a jitted forward whose backward is one XLA program too.

When a traced function returns tensors that require a gradient and whose graph is still there, the
backward is traced right behind the forward, by torch's own autograd, and the jaxpr is cut in two:
what does not need the incoming gradients runs in the forward and leaves its values behind.
"""

from collections.abc import Iterable
from typing import Any

import torch
from jax import Array
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from torch.autograd.function import once_differentiable

from calque.device.cell import read, wrap, x64
from calque.run.lifting import Lifting
from calque.run.results import Description, Fresh


class Backward:
    """The traced backward.

    Attributes:
        outputs: the leaves of the result that carry gradients, by index.
        slots: the inputs of the trace that stand for the incoming gradients.
        targets: the tensors that receive gradients.
        gradients: the traced gradients, one for each target that gets one.
    """

    def __init__(
        self,
        outputs: list[int],
        slots: list[int],
        targets: list[torch.Tensor],
        gradients: list[Array],
    ) -> None:
        self.outputs = outputs
        self.slots = slots
        self.targets = targets
        self.gradients = gradients


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
        if isinstance(result, Fresh) and leaf.requires_grad and leaf.grad_fn is not None
    ]
    if not outputs:
        return None
    candidates = {id(t): t for t in tensors if t.requires_grad}
    candidates.update(
        (id(t), t) for t in stand_ins if isinstance(t, torch.Tensor) and t.requires_grad
    )
    targets = list(candidates.values())
    slots, incoming = [], []
    for index in outputs:
        slots.append(len(lifting.inputs))
        leaf = leaves[index]
        array = lifting.new_input("incoming", None, leaf.shape, read(leaf).dtype)
        incoming.append(wrap(array))
    try:
        found = torch.autograd.grad(
            [leaves[i] for i in outputs], targets, incoming, allow_unused=True
        )
    except RuntimeError as error:
        if "a second time" not in str(error):
            raise
        return None
    pairs = [(t, g) for t, g in zip(targets, found, strict=True) if g is not None]
    if not pairs:
        return None
    return Backward(outputs, slots, [t for t, _ in pairs], [read(g) for _, g in pairs])


def split(jaxpr: ClosedJaxpr, slots: list[int], n_forward: int) -> tuple[Any, Any, list[int]]:
    """Cut a jaxpr into a forward and a backward.

    Args:
        jaxpr: computes `n_forward` results, then gradients.
        slots: the inputs that only the backward has.

    Returns:
        The forward as a function of the other inputs, giving the results and the residuals; the
        backward as a function of the residuals and the incoming gradients; and the positions of
        the forward's inputs in the jaxpr's.
    """
    inner = jaxpr.jaxpr
    late = {inner.invars[slot] for slot in slots}
    early_equations, late_equations = [], []
    for equation in inner.eqns:
        if any(not isinstance(v, Literal) and v in late for v in equation.invars):
            late.update(equation.outvars)
            late_equations.append(equation)
        else:
            early_equations.append(equation)
    gradients = inner.outvars[n_forward:]
    needed: dict[Any, None] = {}
    used = [v for e in _live(late_equations, gradients) for v in e.invars] + list(gradients)
    constants = set(inner.constvars)
    for variable in used:
        if not isinstance(variable, Literal) and variable not in late | constants:
            needed[variable] = None
    residuals = list(needed)
    kept = [i for i in range(len(inner.invars)) if i not in set(slots)]
    debug = inner.debug_info.with_unknown_names()
    forward = inner.replace(
        invars=[inner.invars[i] for i in kept],
        outvars=[*inner.outvars[:n_forward], *residuals],
        eqns=early_equations,
        debug_info=debug,
    )
    backward = inner.replace(
        invars=[*residuals, *(inner.invars[slot] for slot in slots)],
        outvars=list(gradients),
        eqns=late_equations,
        debug_info=debug,
    )
    return (
        jaxpr_as_fun(ClosedJaxpr(forward, jaxpr.consts)),
        jaxpr_as_fun(ClosedJaxpr(backward, jaxpr.consts)),
        kept,
    )


def _live(equations: list[Any], outputs: list[Any]) -> list[Any]:
    """The equations that the outputs need."""
    wanted = {v for v in outputs if not isinstance(v, Literal)}
    kept = []
    for equation in reversed(equations):
        if any(v in wanted for v in equation.outvars):
            wanted.update(v for v in equation.invars if not isinstance(v, Literal))
            kept.append(equation)
    return kept[::-1]


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
            gradients = ctx.program(*ctx.residuals, *[read(g) for g in incoming])
        return None, None, *[wrap(g) for g in gradients]
