"""Turns repeated parts of a jaxpr into calls of one inner jaxpr.

Such a program is lowered in a fraction of the time, because the inner jaxpr is lowered once. XLA
inlines the calls, so the compiled program is the same.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Literal

from calque.program.foreach_splitting import Region, columns_alike, regions
from calque.program.isomorphic_equations import Alike
from calque.program.jaxprs import build
from calque.program.lowering import placeholder_p
from calque.program.repeats import repeats

LAYER, COLUMN = "repeated_layer", "repeated_update"
"""The names of these inner jaxprs."""


def called(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Returns an equivalent jaxpr that calls its repeated parts."""
    return _layers(_columns(closed))


def _layers(closed: ClosedJaxpr) -> ClosedJaxpr:
    inner = closed.jaxpr
    found = repeats(inner.eqns, inner.outvars)
    if not found:
        return closed
    equations: list[Any] = []
    done = 0
    for repeat in found:
        equations += inner.eqns[done : repeat.start]
        equations += calls(inner, repeat.alike, LAYER)
        done = repeat.end
    return build(closed, inner.invars, inner.outvars, equations + inner.eqns[done:])


def _columns(closed: ClosedJaxpr) -> ClosedJaxpr:
    inner = closed.jaxpr
    equations: list[Any] = []
    done = 0
    for start, end, region in regions(inner.eqns):
        equations += inner.eqns[done:start]
        equations += _called_columns(inner, region, end)
        done = end
    if not done:
        return closed
    return build(closed, inner.invars, inner.outvars, equations + inner.eqns[done:])


def _called_columns(jaxpr: Any, region: Region, end: int) -> list[Any]:
    outside = {v for e in jaxpr.eqns[end:] for v in e.invars if not isinstance(v, Literal)}
    outside.update(v for v in jaxpr.outvars if not isinstance(v, Literal))
    equations = list(region.before)
    columns = region.columns()
    rest = set(range(len(columns)))
    for members, one in columns_alike(columns, outside):
        equations += calls(jaxpr, one, COLUMN)
        rest.difference_update(members)
    for index in sorted(rest):
        equations += columns[index]
    return equations


def calls(jaxpr: object, alike: Alike, name: str) -> list[Any]:
    """Replaces each sequence with a call of the shared jaxpr.

    Args:
        jaxpr: the jaxpr that contains the sequences.
        alike: the sequences.
        name: the name of the inner jaxpr.
    """
    call = call_of(alike.body(jaxpr), name)
    return [
        call.replace(
            invars=given,
            outvars=alike.results(index),
            source_info=stretch[0].source_info.replace(name_stack=alike.scopes[index]),
            ctx=stretch[0].ctx,
        )
        for index, (stretch, given) in enumerate(zip(alike.stretches, alike.given, strict=True))
    ]


def call_of(closed: ClosedJaxpr, name: str) -> Any:
    """Returns an equation that calls a jaxpr, without operands and results yet."""
    equation = _template(tuple(closed.in_avals), tuple(closed.out_avals))
    return equation.replace(params={**equation.params, "jaxpr": closed, "name": name})


@cache
def _template(inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> Any:
    def run(*arrays: Any) -> Sequence[Any]:
        return placeholder_p.bind(*arrays, avals=outputs)

    given = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in inputs]
    traced: Any = jax.make_jaxpr(jax.jit(run))(*given)
    (equation,) = traced.jaxpr.eqns
    return equation
