"""Runs the primitives of a program with symbolic sizes on padded arrays."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal

from calque.dynamo.buckets.padding.padded import Padded, Sizes, Unpaddable, whole
from calque.dynamo.buckets.padding.table import RULES
from calque.upstream.jax_internals import is_symbolic_dim

_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call")
_ALWAYS = ("dim_as_value", "iota", "broadcast_in_dim")


def run(
    sizes: Sizes, closed: ClosedJaxpr, values: Sequence[Padded], place_of: Callable[[Any], str]
) -> list[Padded]:
    """Returns the results of a program.

    Args:
        sizes: the values of the symbols in the shapes of the program.
        closed: the program.
        values: its arguments.
        place_of: returns the user's operator and line for an equation.

    Raises:
        Unpaddable: a primitive has no rule for axes that are padded in this way.
    """
    inner = closed.jaxpr
    known = dict(zip(inner.constvars, map(whole, closed.consts), strict=True))
    known.update(zip(inner.invars, values, strict=True))

    def read(variable: Any) -> Padded:
        if isinstance(variable, Literal):
            return whole(jnp.asarray(variable.val, variable.aval.dtype))
        return known[variable]

    for equation in inner.eqns:
        given = [read(v) for v in equation.invars]
        try:
            found = _evaluate(sizes, equation, given, place_of)
        except Unpaddable as reason:
            if reason.__cause__ is not None:  # already explained
                raise
            name = equation.primitive.name
            raise Unpaddable(f"{place_of(equation)}{name}: {reason}") from reason
        except (TypeError, ValueError, NotImplementedError) as error:
            # JAX raised it for padded sizes.
            name = equation.primitive.name
            raise Unpaddable(f"{place_of(equation)}{name}: {error}") from error
        known.update(zip(equation.outvars, found, strict=True))
    return [read(v) for v in inner.outvars]


def _evaluate(
    sizes: Sizes, equation: Any, given: list[Padded], place_of: Callable[[Any], str]
) -> list[Padded]:
    primitive = equation.primitive
    if primitive.name in _CALLS:
        inner = next(equation.params[name] for name in _INNER if name in equation.params)
        closed = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
        return run(sizes, closed, given, lambda e: place_of(equation))
    if primitive.name not in _ALWAYS and not _is_symbolic(equation, given):
        params = primitive.get_bind_params(equation.params)
        found = primitive.bind(*(v.array for v in given), **params)
        return [*map(whole, found)] if primitive.multiple_results else [whole(found)]
    rule = RULES.get(primitive.name)
    if rule is None:
        raise Unpaddable("there is no rule for padded sizes")
    found = rule(sizes, equation, *given)
    return list(found) if primitive.multiple_results else [found]


def _is_symbolic(equation: Any, given: list[Padded]) -> bool:
    if any(value.is_padded for value in given):
        return True
    avals = [v.aval for v in equation.outvars]
    return any(is_symbolic_dim(n) for a in avals for n in a.shape) or _mentions(equation.params)


def _mentions(value: Any) -> bool:
    """Returns True if a symbol occurs in an equation's parameters, or in programs among them."""
    if isinstance(value, dict):
        return any(map(_mentions, value.values()))
    if isinstance(value, tuple | list):
        return any(map(_mentions, value))
    if isinstance(value, ClosedJaxpr):
        return _mentions(value.jaxpr)
    if hasattr(value, "eqns"):
        variables = (v for e in value.eqns for v in e.outvars)
        return any(is_symbolic_dim(n) for v in variables for n in getattr(v.aval, "shape", ())) or (
            any(_mentions(e.params) for e in value.eqns)
        )
    return is_symbolic_dim(value)
