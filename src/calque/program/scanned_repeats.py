"""Turns repeated parts of a jaxpr into a loop.

The layers of a model become `lax.scan`: values from the previous layer are carried, shared values
are constants, a layer's own program inputs (weights) are selected by its number, and other values
are stacked. A loop bounds memory: XLA gathers the sharded weights of one layer at a time instead of
keeping all of them. And only one layer is compiled, regardless of their number.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from calque.device.memory.cell import x64
from calque.program.isomorphic_equations import Alike
from calque.program.jaxprs import build
from calque.program.repeats import Repeat, repeats
from calque.program.scope_names import merged, renamed

_LEAST = 3
"""The minimum number of equations in a layer."""


def scanned(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, int]:
    """Returns an equivalent jaxpr that loops over its repetitions, and the number of loops."""
    inner = closed.jaxpr
    equations: list[Any] = []
    done = count = 0
    for repeat in repeats(inner.eqns, inner.outvars, _LEAST):
        loop = _loop(inner, repeat)
        if loop is not None:
            equations += inner.eqns[done : repeat.start]
            equations += loop
            done, count = repeat.end, count + 1
    if not count:
        return closed, 0
    found = build(closed, inner.invars, inner.outvars, equations + inner.eqns[done:])
    return found, count


class _Operands(NamedTuple):
    """The kinds of inputs of a repeat's sequences, by position.

    Attributes:
        constant: inputs that all sequences share.
        carried: inputs from the previous sequence, with the index of its result.
        chosen: inputs that are different inputs of the program.
        stacked: other inputs.
    """

    constant: dict[int, Any]
    carried: dict[int, int]
    chosen: dict[int, list[Any]]
    stacked: dict[int, list[Any]]


def _operands(alike: Alike, inputs: set[Any]) -> _Operands | None:
    """Returns the kinds of a loop's operands; None if it cannot be a loop."""
    results = [alike.results(i) for i in range(len(alike.stretches))]
    made = {v for row in results for v in row}
    found = _Operands({}, {}, {}, {})
    for place, row in enumerate(map(list, zip(*alike.given, strict=True))):
        variables = {v for v in row if not isinstance(v, Literal)}
        if not made.isdisjoint(variables):
            before = _before(row, results)
            if before is None or row[0] in made:
                return None
            found.carried[place] = before
        elif len(variables) == 1 and not any(isinstance(v, Literal) for v in row):
            found.constant[place] = row[0]
        else:
            (found.chosen if variables <= inputs else found.stacked)[place] = row
    return found


def _before(row: Sequence[Any], results: list[list[Any]]) -> int | None:
    """Returns the index of the previous sequence's result that is an input of the next one."""
    if any(isinstance(v, Literal) for v in row) or row[1] not in results[0]:
        return None
    index = results[0].index(row[1])
    follows = all(row[i + 1] is results[i][index] for i in range(len(row) - 1))
    return index if follows and row[0].aval == row[1].aval else None


def _loop(jaxpr: Any, repeat: Repeat) -> list[Any] | None:
    """Returns the equations of a loop for a repeat; None if it cannot be a loop."""
    alike = repeat.alike
    operands = _operands(alike, set(jaxpr.invars))
    if operands is None or not operands.carried:
        return None
    behind = {v for e in jaxpr.eqns[repeat.end :] for v in e.invars if not isinstance(v, Literal)}
    behind.update(v for v in jaxpr.outvars if not isinstance(v, Literal))
    rows = [alike.results(i) for i in range(len(alike.stretches))]
    needed = [(i, o) for i, row in enumerate(rows) for o, v in enumerate(row) if v in behind]
    given = [
        list(operands.constant.values()),
        [alike.given[0][place] for place in operands.carried],
        list(operands.chosen.values()),
        list(operands.stacked.values()),
    ]
    run = partial(_run, jaxpr_as_fun(alike.body(jaxpr)), operands, needed, len(rows))
    like = renamed(alike.stretches[0][0], merged(alike.scopes))
    return _inlined(run, given, [rows[i][o] for i, o in needed], like)


def _run(
    body: Callable[..., list[Any]],
    operands: _Operands,
    needed: list[tuple[int, int]],
    count: int,
    constant: list[Any],
    begun: list[Any],
    choices: list[list[Any]],
    rows: list[list[Any]],
) -> list[Any]:
    """Run a loop.

    Args:
        body: the body of the loop.
        operands: the kinds of the operands.
        needed: the results that are used after the loop, as (iteration, result).
        count: the number of iterations.
        constant, begun, choices, rows: the operands of each kind, with initial values for those
            carried.

    Returns:
        The needed results.
    """
    ends = list(operands.carried.values())
    kept = sorted({o for i, o in needed if i < count - 1 or o not in ends})
    stacks = [jnp.stack(row) for row in rows]

    def step(carry: list[Any], own: tuple[Any, list[Any]]) -> tuple[list[Any], list[Any]]:
        index, parts = own
        given = dict(zip(operands.constant, constant, strict=True))
        given |= zip(operands.carried, carry, strict=True)
        given |= zip(operands.chosen, [_chosen(index, row) for row in choices], strict=True)
        given |= zip(operands.stacked, parts, strict=True)
        made = body(*[given[place] for place in range(len(given))])
        return [made[o] for o in ends], [made[o] for o in kept]

    last, rest = lax.scan(step, begun, (jnp.arange(count), stacks), length=count)
    return [rest[kept.index(o)][i] if o in kept else last[ends.index(o)] for i, o in needed]


def _chosen(index: object, row: list[Any]) -> Any:
    """Selects one of several arrays, without copying them into a stack."""
    return lax.switch(index, [partial(lambda one: one, one) for one in row])


def _inlined(
    run: Callable[..., list[Any]], given: Any, results: list[Any], like: Any
) -> list[Any] | None:
    """Returns the equations of a function from some variables to others; None if there are none.

    Args:
        run: the function.
        given: its operands, in a container.
        results: the variables.
        like: an equation that they replace.
    """
    operands, tree = jax.tree_util.tree_flatten(given)
    avals = [
        jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type)
        for v in operands
    ]
    with x64():
        traced: Any = jax.make_jaxpr(lambda *a: run(*tree.unflatten(a)))(*avals)
    inner = traced.jaxpr
    made = {v for e in inner.eqns for v in e.outvars}
    if traced.consts or len(set(map(id, inner.outvars))) < len(results):
        return None
    if any(isinstance(v, Literal) or v not in made for v in inner.outvars):
        return None
    names: dict[Any, Any] = dict(zip(inner.invars, operands, strict=True))
    names.update(zip(inner.outvars, results, strict=True))
    equations = []
    for equation in inner.eqns:
        own = [names.setdefault(v, type(like.outvars[0])(v.aval)) for v in equation.outvars]
        taken = [v if isinstance(v, Literal) else names[v] for v in equation.invars]
        source = like.source_info
        equations.append(equation.replace(invars=taken, outvars=own, source_info=source))
    return equations
