"""Lowers a jaxpr like `jax.jit`, without tracing it again.

`jax.jit(jaxpr_as_fun(closed)).lower(...)` binds every equation again to get an equal jaxpr, which
takes as long as lowering it. Here, JAX traces a function with the same inputs and outputs but one
equation, and lowers the jaxpr instead of that function.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun

from calque.program.jaxprs import distinct_params

placeholder_p: Primitive = Primitive("calque_placeholder")
"""Represents a whole jaxpr; it is never lowered."""
placeholder_p.multiple_results = True


@placeholder_p.def_abstract_eval
def _avals(*given: Any, avals: tuple[Any, ...]) -> tuple[Any, ...]:
    return avals


def lowered(closed: ClosedJaxpr, avals: Sequence[Any], **options: Any) -> jax.stages.Lowered:
    """Returns a jaxpr as `jax.stages.Lowered`.

    Args:
        closed: the jaxpr.
        avals: its inputs, as for `jax.jit(...).lower`.
        options: options for `jax.jit`.
    """
    is_placed = any(getattr(aval, "sharding", None) is not None for aval in avals)
    if not is_placed and not _is_high(closed):
        found = _traced(closed, avals, options)
        if found is not None:
            return found.lower()
    return jax.jit(jaxpr_as_fun(closed), **options).lower(*avals)


def _is_high(closed: ClosedJaxpr) -> bool:
    """Returns True if JAX expands parts of it before lowering (from release 0.12 on)."""
    inner = (value for one in distinct_params(closed.jaxpr.eqns) for value in one.values())
    return any(getattr(value, "is_high", False) is True for value in inner)


def _traced(closed: ClosedJaxpr, avals: Sequence[Any], options: dict[str, Any]) -> Any:
    """Returns the jaxpr as `jax.stages.Traced`; None if this JAX release does not support it."""

    def run(*arrays: Any) -> Any:
        return placeholder_p.bind(*arrays, avals=tuple(closed.out_avals))

    run.__name__ = run.__qualname__ = "jaxpr_as_fun"  # the program's name without this module
    traced: Any = jax.jit(run, **options).trace(*avals)
    try:
        params = traced._params
        debug_info = params["jaxpr"].jaxpr.debug_info
        placed = ClosedJaxpr(closed.jaxpr.replace(debug_info=debug_info), closed.consts)
        traced._params = {**params, "jaxpr": placed}
        return traced if traced.jaxpr is placed else None
    except (AttributeError, KeyError, TypeError):
        return None
