"""What a jaxpr does again and again, as calls of one inner jaxpr.

Such a program is lowered in a fraction of the time: the inner jaxpr once, and a call of it for each
repeat. XLA inlines the calls, and so compiles what it would have.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from calque.program.jaxprs import build
from calque.program.lowering import placeholder_p
from calque.program.repeats import Repeat, repeats

NAME = "repeated"
"""The name of such an inner jaxpr."""


def called(closed: ClosedJaxpr) -> ClosedJaxpr:
    """A jaxpr of the same results that calls what it repeats."""
    inner = closed.jaxpr
    found = repeats(inner.eqns, inner.outvars)
    if not found:
        return closed
    equations: list[Any] = []
    done = 0
    for repeat in found:
        equations += inner.eqns[done : repeat.start]
        equations += _calls(inner, repeat)
        done = repeat.end
    return build(closed, inner.invars, inner.outvars, equations + inner.eqns[done:])


def _calls(jaxpr: Any, repeat: Repeat) -> list[Any]:
    equations = jaxpr.eqns
    results = [repeat.results(equations, i) for i in range(repeat.count)]
    call = call_of(body(jaxpr, repeat), NAME)
    return [
        call.replace(
            invars=given,
            outvars=made,
            source_info=repeat.stretch(equations, index)[0].source_info,
            ctx=repeat.stretch(equations, index)[0].ctx,
        )
        for index, (given, made) in enumerate(zip(repeat.given, results, strict=True))
    ]


def body(jaxpr: Any, repeat: Repeat) -> ClosedJaxpr:
    """What a repeat does each time, as a jaxpr of what is given to what is made."""
    equations = list(repeat.stretch(jaxpr.eqns, 0))
    given = repeat.given[0]
    inputs = [_variable(jaxpr, v.aval) if isinstance(v, Literal) else v for v in given]
    literals = inputs[len(inputs) - len(repeat.literals) :]
    for (place, number), variable in zip(repeat.literals, literals, strict=True):
        operands = list(equations[place].invars)
        operands[number] = variable
        equations[place] = equations[place].replace(invars=operands)
    results = repeat.results(jaxpr.eqns, 0)
    told = jaxpr.debug_info.with_unknown_names()
    told = told._replace(
        arg_names=None if told.arg_names is None else ("",) * len(inputs),
        result_paths=None if told.result_paths is None else ("",) * len(results),
    )
    made = jaxpr.replace(
        constvars=[], invars=inputs, outvars=results, eqns=equations, debug_info=told
    )
    return ClosedJaxpr(made, [])


def _variable(jaxpr: Any, aval: Any) -> Any:
    kind = type(next(v for e in jaxpr.eqns for v in e.outvars))
    return kind(aval)


def call_of(closed: ClosedJaxpr, name: str) -> Any:
    """An equation that calls a jaxpr; its operands and results have to be put in."""
    equation = _template(tuple(closed.in_avals), tuple(closed.out_avals))
    params = {**equation.params, "jaxpr": closed, "name": name}
    return equation.replace(params=params, effects=closed.effects)


@cache
def _template(inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> Any:
    def run(*arrays: Any) -> Sequence[Any]:
        return placeholder_p.bind(*arrays, avals=outputs)

    given = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in inputs]
    traced: Any = jax.make_jaxpr(jax.jit(run))(*given)
    (equation,) = traced.jaxpr.eqns
    return equation
