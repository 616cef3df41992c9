"""Transformations of jaxprs: removing dead code, splitting forward and backward."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal

from calque.device.memory.cell import x64
from calque.upstream.jax_internals import jaxprs_in_params


def live(equations: list[Any], outputs: list[Any]) -> list[Any]:
    """Returns the equations that the outputs need, and those with effects."""
    wanted = {v for v in outputs if not isinstance(v, Literal)}
    kept = []
    for equation in reversed(equations):
        if equation.effects or any(v in wanted for v in equation.outvars):
            wanted.update(v for v in equation.invars if not isinstance(v, Literal))
            kept.append(equation)
    return kept[::-1]


def build(closed: ClosedJaxpr, inputs: list[Any], outputs: list[Any], equations: Any) -> Any:
    """Returns a closed jaxpr with new inputs, outputs and equations, and the constants that they
    need.

    Unneeded constants would be part of the program's text, and kept with it.
    """
    needed = {v for e in equations for v in e.invars if is_variable(v)}
    needed.update(filter(is_variable, outputs))
    named = zip(closed.jaxpr.constvars, closed.consts, strict=True)
    constants = [(v, value) for v, value in named if v in needed]
    inner = closed.jaxpr.replace(
        constvars=[v for v, _ in constants],
        invars=inputs,
        outvars=outputs,
        eqns=equations,
        debug_info=closed.jaxpr.debug_info.with_unknown_names(),
    )
    return ClosedJaxpr(inner, [value for _, value in constants])


def prune(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, list[int]]:
    """Returns the jaxpr without unneeded equations and inputs, and the positions of the remaining
    inputs.
    """
    inner = closed.jaxpr
    equations = live(inner.eqns, inner.outvars)
    used = {v for e in equations for v in e.invars if not isinstance(v, Literal)}
    used.update(v for v in inner.outvars if not isinstance(v, Literal))
    kept = [i for i, v in enumerate(inner.invars) if v in used]
    return build(closed, [inner.invars[i] for i in kept], inner.outvars, equations), kept


class Late(NamedTuple):
    """A backward pass that was cut from its forward pass.

    Attributes:
        closed: a jaxpr from the residuals and incoming gradients to the gradients.
        residuals: the indexes of the forward pass's residuals that it takes.
    """

    closed: ClosedJaxpr
    residuals: list[int]


def constant(closed: ClosedJaxpr) -> list[int]:
    """Returns the indexes of the outputs that depend on no input."""
    inner = closed.jaxpr
    varying = set(inner.invars)
    for equation in inner.eqns:
        if equation.effects or any(is_variable(v) and v in varying for v in equation.invars):
            varying.update(equation.outvars)
    return [i for i, v in enumerate(inner.outvars) if not (is_variable(v) and v in varying)]


def split(
    closed: ClosedJaxpr, parts: Sequence[tuple[list[int], int]], n_forward: int
) -> tuple[ClosedJaxpr, list[Late], list[int]]:
    """Cut a jaxpr into a forward pass and backward passes.

    Args:
        closed: a jaxpr that computes `n_forward` results, then the gradients of each part.
        parts: for each part, the inputs on which only its gradients depend (the incoming
            gradients), and the number of gradients.
        n_forward: the number of results.

    Returns:
        The forward pass, which returns the results and the residuals; the backward passes; and the
        positions of the forward pass's inputs. Values that depend on no input are computed in each.
    """
    inner = closed.jaxpr
    slots = {slot for part, _ in parts for slot in part}
    late = {inner.invars[slot] for slot in slots}
    constant: set[Any] = set(inner.constvars)
    early_equations, late_equations = [], []
    for equation in inner.eqns:
        used = set(filter(is_variable, equation.invars))
        if not late.isdisjoint(used):
            late.update(equation.outvars)
            late_equations.append(equation)
            continue
        early_equations.append(equation)
        if used <= constant and not equation.effects:
            constant.update(equation.outvars)
            late_equations.append(equation)
    outside = late | constant
    residuals: dict[Any, int] = {}
    backwards, first = [], n_forward
    for own, count in parts:
        gradients = inner.outvars[first : first + count]
        first += count
        equations = live(late_equations, gradients)
        read = [v for e in equations for v in e.invars] + list(gradients)
        needed = dict.fromkeys(v for v in read if is_variable(v) and v not in outside)
        for variable in needed:
            residuals.setdefault(variable, len(residuals))
        inputs = [*needed, *(inner.invars[slot] for slot in own)]
        backward = build(closed, inputs, list(gradients), equations)
        backwards.append(Late(backward, [residuals[v] for v in needed]))
    positions = [i for i in range(len(inner.invars)) if i not in slots]
    results = [*inner.outvars[:n_forward], *residuals]
    early = [inner.invars[i] for i in positions]
    pruned, kept = prune(build(closed, early, results, early_equations))
    return pruned, backwards, [positions[i] for i in kept]


def without(closed: ClosedJaxpr, n_residuals: int, missing: Collection[int]) -> ClosedJaxpr:
    """Returns a backward pass for which some incoming gradients are missing, which differs from
    zero.

    Zero times an infinite derivative is NaN. So equations that depend only on missing gradients are
    removed; a missing gradient in a sum with other gradients is zero.

    Args:
        closed: a jaxpr of residuals and incoming gradients.
        n_residuals: the number of residuals.
        missing: the missing incoming gradients, which remain inputs.
    """
    inner = closed.jaxpr
    incoming = inner.invars[n_residuals:]
    nothing = {incoming[index] for index in missing}
    some = set(incoming) - nothing
    equations: list[Any] = []
    zeros: dict[Any, Any] = {}

    def value(variable: Any) -> Any:
        if not is_variable(variable) or variable not in nothing:
            return variable
        if variable not in zeros:
            made, zeros[variable] = _zeros(variable)
            equations.extend(made)
        return zeros[variable]

    for equation in inner.eqns:
        used = set(filter(is_variable, equation.invars))
        if not some.isdisjoint(used):
            some.update(equation.outvars)
        elif not nothing.isdisjoint(used):
            nothing.update(equation.outvars)
            continue
        operands = [value(v) for v in equation.invars]
        equations.append(equation.replace(invars=operands))
    outputs = [value(v) for v in inner.outvars]
    return build(closed, inner.invars, outputs, live(equations, outputs))


def variables(equations: list[Any]) -> set[Any]:
    """Returns the variables that some equations read."""
    return {v for e in equations for v in e.invars if is_variable(v)}


def _zeros(variable: Any) -> tuple[list[Any], Any]:
    """Returns equations for zeros like a variable, if needed, and the zeros."""
    aval = variable.aval
    with x64():
        traced = jax.make_jaxpr(lambda: lax.full(aval.shape, 0, aval.dtype))()
    made = traced.jaxpr.outvars[0]
    if isinstance(made, Literal):
        return [], made
    zeros = type(variable)(aval)
    return [e.replace(outvars=[zeros]) for e in traced.jaxpr.eqns], zeros


def may_raise(jaxpr: object) -> bool:
    """Returns True if a program calls code that may raise: Python, or another library through JAX's
    FFI.
    """
    primitives = {equation.primitive for inner in every(jaxpr) for equation in inner.eqns}
    names = [primitive.name for primitive in primitives]
    return any(name.endswith("_callback") or name == "ffi_call" for name in names)


def every(jaxpr: Any) -> Iterator[Any]:
    """Yields a jaxpr and the distinct jaxprs that it calls."""
    programs = {id(jaxpr)}
    waiting = [jaxpr]
    while waiting:
        one = waiting.pop()
        yield one
        for inner in _called(one):
            if id(inner) not in programs:
                programs.add(id(inner))
                waiting.append(inner)


_calls: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()


def _called(jaxpr: Any) -> tuple[Any, ...]:
    """Returns the distinct jaxprs that the equations of a jaxpr, which never changes, call."""
    found = _calls.get(jaxpr)
    if found is None:
        inner = (one for params in distinct_params(jaxpr.eqns) for one in jaxprs_in_params(params))
        found = _calls[jaxpr] = tuple({id(one): one for one in inner}.values())
    return found


def distinct_params(equations: Sequence[Any]) -> Iterable[dict[str, Any]]:
    """Returns the parameters of some equations, those that several equations share once.

    A trace calls the same few functions thousands of times (see `staged_calls`).
    """
    return {id(equation.params): equation.params for equation in equations}.values()


def constrained(jaxpr: Any) -> Iterator[Any]:
    """Returns the sharding constraints among a jaxpr's own equations."""
    return (one for one in jaxpr.eqns if one.primitive.name == "sharding_constraint")


def is_variable(value: object) -> bool:
    """Returns True if a value in a jaxpr is not a literal."""
    return not isinstance(value, Literal)
