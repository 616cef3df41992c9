"""Multiplies by sharded weights in their own layout, so that each is gathered only once.

A linear layer multiplies by its transposed weight, and its backward pass by the weight itself. XLA
gathers the operands of a product, so it would gather the weight twice, once transposed and once
not. A product can contract either axis, so both can use the weight itself, which XLA gathers once.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from jax.extend.core import ClosedJaxpr, Literal

from calque.device.memory.view_access import READ_VIEW
from calque.program.jaxprs import build, live

_TRANSPOSED = (1, 0)


def untransposed(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Returns an equivalent jaxpr whose products use inputs instead of their transposed views."""
    inner = closed.jaxpr
    inputs = set(inner.invars)
    shown = {
        equation.outvars[0]: equation.invars[0]
        for equation in inner.eqns
        if _is_transposition(equation) and equation.invars[0] in inputs
    }
    if not shown:
        return closed
    turned: dict[tuple[int, tuple[int, ...]], ClosedJaxpr] = {}
    equations = [_with_inputs(equation, shown, turned) for equation in inner.eqns]
    return build(closed, inner.invars, inner.outvars, live(equations, inner.outvars))


def _with_inputs(
    equation: Any, shown: dict[Any, Any], turned: dict[tuple[int, tuple[int, ...]], ClosedJaxpr]
) -> Any:
    """Returns the equation with inputs instead of the transposed views by which it multiplies."""
    if equation.primitive.name != "jit":
        return equation
    called = equation.params["jaxpr"]
    places = tuple(
        i
        for i, variable in enumerate(equation.invars)
        if not isinstance(variable, Literal)
        and variable in shown
        and _is_only_multiplied(called.jaxpr, called.jaxpr.invars[i])
    )
    if not places:
        return equation
    key = id(called), places
    if key not in turned:
        turned[key] = _turned(called, {i: shown[equation.invars[i]].aval for i in places})
    invars = [shown[v] if i in places else v for i, v in enumerate(equation.invars)]
    return equation.replace(invars=invars, params={**equation.params, "jaxpr": turned[key]})


def _is_transposition(equation: Any) -> bool:
    """Returns True if an equation only takes the transposed view of a matrix."""
    if equation.primitive.name != "jit" or equation.params["name"] != READ_VIEW:
        return False
    called = equation.params["jaxpr"].jaxpr
    return (
        len(called.eqns) == len(called.invars) == 1
        and called.eqns[0].primitive.name == "transpose"
        and called.eqns[0].params["permutation"] == _TRANSPOSED
        and list(called.outvars) == list(called.eqns[0].outvars)
    )


def _is_only_multiplied(called: Any, matrix: Any) -> bool:
    """Returns True if a jaxpr uses a matrix only once, contracted in a product without batches."""
    uses = [e for e in called.eqns for v in e.invars if v is matrix]
    if len(uses) != 1 or uses[0].primitive.name != "dot_general":
        return False
    contracted, batches = uses[0].params["dimension_numbers"]
    # An outer product contracts no axes, and its result has the operand's order of axes.
    is_contracted = all(contracted) and batches == ((), ())
    return is_contracted and all(v is not matrix for v in called.outvars)


def _turned(closed: ClosedJaxpr, avals: Mapping[int, Any]) -> ClosedJaxpr:
    """Returns a jaxpr that takes some matrices untransposed.

    Args:
        closed: the jaxpr.
        avals: the abstract values of these matrices, by the position of the input.
    """
    called = closed.jaxpr
    new = {called.invars[i]: type(called.invars[i])(aval) for i, aval in avals.items()}
    equations = [_contracting(e, new) if any(_in(e, new)) else e for e in called.eqns]
    inputs = [new.get(v, v) for v in called.invars]
    return build(closed, inputs, called.outvars, equations)


def _in(equation: Any, new: dict[Any, Any]) -> Iterator[bool]:
    return (not isinstance(v, Literal) and v in new for v in equation.invars)


def _contracting(product: Any, new: dict[Any, Any]) -> Any:
    """Returns the product that contracts the other axis of its untransposed operands."""
    contracted, batches = product.params["dimension_numbers"]
    axes = [
        tuple(1 - axis for axis in own) if turned else own
        for own, turned in zip(contracted, _in(product, new), strict=True)
    ]
    invars = [v if isinstance(v, Literal) else new.get(v, v) for v in product.invars]
    numbers = (tuple(axes), batches)
    return product.replace(invars=invars, params={**product.params, "dimension_numbers": numbers})
