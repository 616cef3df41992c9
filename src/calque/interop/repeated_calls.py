"""Checks whether a second call of a functional module computes the same as the first."""

import re
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import torch
from jax import Array
from jax.extend.core import ClosedJaxpr, Literal

from calque.errors.handlers import is_of_handler
from calque.interop.functional_call import FunctionalCall, Pure
from calque.program.lifted import lift

if TYPE_CHECKING:
    from calque.interop.functional import Functional


def repeats(
    functional: "Functional",
    leaves: list[Any],
    spec: object,
    arguments_are_leaves: bool,
    between: Callable[[], None] | None = None,
) -> bool:
    """Returns True if the second of two calls computes the same as the first.

    Both are traced in turn, and the second starts with the Python state after the first, such as
    stored tensors and counters.

    Args:
        functional: the module.
        leaves, spec: an example call, flattened.
        arguments_are_leaves: as for `functional_trace.FunctionalTrace`.
        between: called between the two; changes the state to values that it may have later. If the
            second call then raises, the state may never have those values.
    """
    lifting = Pure()
    given_to: list[int] = []

    def body() -> list[Array]:
        results = []
        for number in range(2):
            if number and between is not None:
                between()
            lifting.forget_draws()
            call = FunctionalCall(functional, lifting, None, arguments_are_leaves)
            results += call.run(leaves, spec)
            given_to.append(len(lifting.inputs))
        return results

    try:
        lifted = lift(lifting, body, torch.enable_grad())
    except Exception as error:
        if is_of_handler(error) or (between is None and not isinstance(error, RuntimeError)):
            raise
        # Raised without `between`, for example because the first call freed a graph.
        return between is not None
    own = {id(one) for one in lifting.inputs[: given_to[0]]}
    of_first = [id(one) in own for one in lifted.inputs]
    half = len(lifted.closed.jaxpr.outvars) // 2
    sources = [one.source for one in lifted.inputs]
    terms = _terms(lifted.closed, [("input", source) for source in sources])
    return terms[:half] == terms[half:] and not any(_reached(lifted.closed, of_first)[half:])


def _reached(closed: ClosedJaxpr, inputs: list[bool]) -> list[bool]:
    """Returns which outputs depend on some of the inputs."""
    jaxpr = closed.jaxpr
    reached = {v for v, wanted in zip(jaxpr.invars, inputs, strict=True) if wanted}
    for equation in jaxpr.eqns:
        if any(not isinstance(v, Literal) and v in reached for v in equation.invars):
            reached.update(equation.outvars)
    return [not isinstance(v, Literal) and v in reached for v in jaxpr.outvars]


def _terms(closed: ClosedJaxpr, inputs: list[Hashable]) -> list[int]:
    """Returns a number for each output; outputs that are computed in the same way have equal
    numbers.

    Args:
        closed: the program.
        inputs: values that distinguish its inputs.
    """
    jaxpr = closed.jaxpr
    numbers: dict[Hashable, int] = {}

    def number(term: Hashable) -> int:
        return numbers.setdefault(term, len(numbers))

    known = {v: number(term) for v, term in zip(jaxpr.invars, inputs, strict=True)}
    known |= {v: number(_key(c)) for v, c in zip(jaxpr.constvars, closed.consts, strict=True)}

    def of(variable: Any) -> int:
        if isinstance(variable, Literal):
            return number((_key(variable.val), str(variable.aval)))
        return known[variable]

    for equation in jaxpr.eqns:
        operands = tuple(map(of, equation.invars))
        params = tuple((name, _key(value)) for name, value in sorted(equation.params.items()))
        for place, variable in enumerate(equation.outvars):
            known[variable] = number((equation.primitive.name, params, operands, place))
    return list(map(of, jaxpr.outvars))


def _key(value: object) -> Hashable:
    """Returns a key of a parameter or constant that is equal for equivalent ones."""
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        return array.shape, str(array.dtype), array.tobytes()
    if isinstance(value, ClosedJaxpr):
        return str(value.jaxpr), tuple(map(_key, value.consts))
    if isinstance(value, tuple | list):
        return tuple(map(_key, value))
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
