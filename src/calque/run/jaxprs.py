"""Surgery on jaxprs: drop what the outputs do not need, cut a forward from its backward."""

from typing import Any

from jax.extend.core import ClosedJaxpr, Literal


def live(equations: list[Any], outputs: list[Any]) -> list[Any]:
    """The equations that the outputs need, and those with effects."""
    wanted = {v for v in outputs if not isinstance(v, Literal)}
    kept = []
    for equation in reversed(equations):
        if equation.effects or any(v in wanted for v in equation.outvars):
            wanted.update(v for v in equation.invars if not isinstance(v, Literal))
            kept.append(equation)
    return kept[::-1]


def build(closed: ClosedJaxpr, inputs: list[Any], outputs: list[Any], equations: Any) -> Any:
    """A closed jaxpr over the same constants with other inputs, outputs and equations."""
    inner = closed.jaxpr.replace(
        invars=inputs,
        outvars=outputs,
        eqns=equations,
        debug_info=closed.jaxpr.debug_info.with_unknown_names(),
    )
    return ClosedJaxpr(inner, closed.consts)


def prune(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, list[int]]:
    """The jaxpr without unneeded equations and inputs, and the positions of the inputs kept."""
    inner = closed.jaxpr
    equations = live(inner.eqns, inner.outvars)
    used = {v for e in equations for v in e.invars if not isinstance(v, Literal)}
    used.update(v for v in inner.outvars if not isinstance(v, Literal))
    kept = [i for i, v in enumerate(inner.invars) if v in used]
    return build(closed, [inner.invars[i] for i in kept], inner.outvars, equations), kept


def split(
    closed: ClosedJaxpr, slots: list[int], n_forward: int
) -> tuple[ClosedJaxpr, ClosedJaxpr, list[int]]:
    """Cut a jaxpr in two.

    Args:
        closed: computes `n_forward` results, then gradients.
        slots: the inputs that only the gradients depend on: the incoming gradients.

    Returns:
        The forward, which gives the results and the residuals; the backward, which takes the
        residuals and the incoming gradients; and the positions of the forward's inputs.
    """
    inner = closed.jaxpr
    late = {inner.invars[slot] for slot in slots}
    early_equations, late_equations = [], []
    for equation in inner.eqns:
        if any(not isinstance(v, Literal) and v in late for v in equation.invars):
            late.update(equation.outvars)
            late_equations.append(equation)
        else:
            early_equations.append(equation)
    gradients = inner.outvars[n_forward:]
    late_equations = live(late_equations, gradients)
    outside = late | set(inner.constvars)
    used = [v for e in late_equations for v in e.invars] + list(gradients)
    residuals = list(dict.fromkeys(v for v in used if _is_variable(v) and v not in outside))
    chosen = set(slots)
    early = [v for i, v in enumerate(inner.invars) if i not in chosen]
    positions = [i for i in range(len(inner.invars)) if i not in chosen]
    forward = build(closed, early, [*inner.outvars[:n_forward], *residuals], early_equations)
    incoming = [inner.invars[slot] for slot in slots]
    backward = build(closed, [*residuals, *incoming], list(gradients), late_equations)
    pruned, kept = prune(forward)
    return pruned, backward, [positions[i] for i in kept]


def _is_variable(value: Any) -> bool:
    return not isinstance(value, Literal)
