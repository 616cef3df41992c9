"""From a function that is traced under a `Lifting` to a jaxpr whose inputs have sources.

`calque.jit`, `torch.compile`, its buckets and `calque.functional` all start with this.
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
        closed: the jaxpr; its inputs are those of `inputs`.
        inputs: where each comes from, of which shape and dtype.
        late: where, among the equations, those of the backward begin.
    """

    closed: ClosedJaxpr
    inputs: list[Input]
    late: int


def lift(
    lifting: Lifting,
    body: Callable[[], list[Array]],
    within: AbstractContextManager[Any] = _NOTHING,
) -> Lifted:
    """Trace a function without arguments, all of whose inputs the lifting finds.

    Args:
        lifting: the trace's view of the world.
        body: the function.
        within: what is entered around it, while the lifting is active.
    """
    with lifting.activated(), within:
        traced = jax.make_jaxpr(body)()
    closed, inputs = _close(traced, lifting.inputs)
    return Lifted(closed, inputs, _late_equations(traced, lifting.inputs))


def _close(traced: Any, inputs: list[Input]) -> tuple[ClosedJaxpr, list[Input]]:
    """Returns the traced jaxpr with the trace's inputs as its own in place of `input_p`, and those
    inputs.

    JAX drops equations that nothing needs, and with them inputs.
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
    """Returns where, among the equations of `close`, those of the backward begin."""
    count = 0
    for equation in traced.jaxpr.eqns:
        if equation.primitive is not input_p:
            count += 1
        elif isinstance(inputs[equation.params["slot"]].source, IncomingSource):
            break
    return count
