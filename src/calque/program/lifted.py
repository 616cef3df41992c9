"""Traces a function under a `Lifting` to a jaxpr whose inputs have sources.

`calque.jit`, `torch.compile`, its buckets and `calque.functional` all begin with this.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
from jax import Array
from jax.extend.core import ClosedJaxpr

from calque.program.jaxprs import build
from calque.program.lifting import Input, Lifting, input_p
from calque.program.sources import IncomingSource

_NOTHING = nullcontext()


class Lifted(NamedTuple):
    """The result of a trace.

    Attributes:
        closed: the jaxpr, with the inputs `inputs`.
        inputs: the source, shape and dtype of each input.
        late: the index of the first equation of the backward pass.
    """

    closed: ClosedJaxpr
    inputs: list[Input]
    late: int


def lift(
    lifting: Lifting,
    body: Callable[[], list[Array]],
    within: AbstractContextManager[Any] = _NOTHING,
) -> Lifted:
    """Trace a function without arguments, whose inputs the lifting finds.

    Args:
        lifting: the state of the trace.
        body: the function.
        within: a context manager around it, entered while the lifting is active.
    """
    with lifting.activated(), within:
        traced = jax.make_jaxpr(body)()
    closed, inputs = _close(traced, lifting.inputs)
    return Lifted(closed, inputs, _late_equations(traced, lifting.inputs))


def _close(traced: Any, inputs: list[Input]) -> tuple[ClosedJaxpr, list[Input]]:
    """Returns the traced jaxpr with the trace's inputs instead of `input_p`, and these inputs.

    JAX drops unneeded equations, and with them inputs.
    """
    variables: dict[int, Any] = {}
    equations = []
    for equation in traced.jaxpr.eqns:
        if equation.primitive is input_p:
            variables[equation.params["slot"]] = equation.outvars[0]
        else:
            equations.append(equation)
    slots = sorted(variables)
    closed = build(traced, [variables[s] for s in slots], traced.jaxpr.outvars, equations)
    return closed, [inputs[slot] for slot in slots]


def _late_equations(traced: Any, inputs: list[Input]) -> int:
    """Returns the index, in the result of `_close`, of the first equation of the backward pass."""
    count = 0
    for equation in traced.jaxpr.eqns:
        if equation.primitive is not input_p:
            count += 1
        elif isinstance(inputs[equation.params["slot"]].source, IncomingSource):
            break
    return count
