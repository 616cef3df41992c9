"""Moves arrays on other devices to a program's devices, and written values back.

A program runs on the devices of one mesh. Storages on other devices keep their placements, like
those on the program's devices.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.sharding import Sharding

from calque.device.runtime.placement import order_of, placed
from calque.program.direct_call import Direct
from calque.program.jaxprs import constrained, every, is_variable


def lies_elsewhere(placement: Sharding, whole: Sharding) -> bool:
    """Returns True if a placement is on other devices than a program (see `pinning.settled`)."""
    return order_of(placement) != order_of(whole)


def elsewhere(placements: Sequence[Sharding | None], whole: Sharding | None) -> dict[int, Sharding]:
    """Returns the placements that are on other devices than a program, by their index."""
    if whole is None:
        return {}
    return {i: p for i, p in enumerate(placements) if p is not None and lies_elsewhere(p, whole)}


def results_elsewhere(jaxpr: object, whole: Sharding | None) -> dict[int, Sharding]:
    """Returns the results that are constrained to other devices, as gradients are to their
    parameters' devices.
    """
    if whole is None:
        return {}
    return elsewhere(_constraints_of_results(jaxpr), whole)


def _constraints_of_results(jaxpr: Any) -> list[Sharding | None]:
    made: dict[Any, Sharding | None] = {}
    for equation in jaxpr.eqns:
        if equation.primitive.name == "sharding_constraint":
            made[equation.outvars[0]] = equation.params["sharding"]
        elif equation.primitive.name == "jit":  # may be an operator
            inner = _constraints_of_results(equation.params["jaxpr"].jaxpr)
            made.update(zip(equation.outvars, inner, strict=True))
    return [made.get(v) if is_variable(v) else None for v in jaxpr.outvars]


def on_one_mesh(closed: ClosedJaxpr, whole: Sharding | None) -> ClosedJaxpr:
    """Returns the program without constraints to other devices, which JAX refuses.

    Args:
        closed: the program.
        whole: see `pinning.settled`.
    """
    if whole is None or not any(
        lies_elsewhere(equation.params["sharding"], whole)
        for inner in every(closed.jaxpr)
        for equation in constrained(inner)
    ):
        return closed
    return ClosedJaxpr(_rewritten(closed.jaxpr, whole), closed.consts)


def _rewritten(jaxpr: Any, whole: Sharding) -> Any:
    equations = []
    for equation in jaxpr.eqns:
        params = {name: _inner(value, whole) for name, value in equation.params.items()}
        if equation.primitive.name == "sharding_constraint":
            if lies_elsewhere(params["sharding"], whole):
                params["sharding"] = whole
        equations.append(equation.replace(params=params))
    return jaxpr.replace(eqns=equations)


def _inner(value: object, whole: Sharding) -> Any:
    """Returns a parameter of an equation, in which inner programs are rewritten."""
    if isinstance(value, tuple | list):
        return type(value)(_inner(one, whole) for one in value) if _has_jaxpr(value) else value
    if isinstance(value, ClosedJaxpr):
        return ClosedJaxpr(_rewritten(value.jaxpr, whole), value.consts)
    return _rewritten(value, whole) if isinstance(value, Jaxpr) else value


def _has_jaxpr(values: Sequence[Any]) -> bool:
    return any(isinstance(one, ClosedJaxpr | Jaxpr) for one in values)


def moving(
    program: Direct, coming: Mapping[int, Sharding], going: Mapping[int, Sharding]
) -> Direct:
    """Wraps a compiled program so that arrays are moved to its devices, and results to others.

    Args:
        program: the compiled program.
        coming: the new placements of arguments on other devices, by index.
        going: the placements of results on other devices.
    """
    if not coming and not going:
        return program

    def call(arrays: list[Any]) -> list[Array]:
        return _moved(program.call(_moved(arrays, coming)), going)

    def start(arrays: list[Any]) -> Iterator[list[Array]]:
        return map(partial(_moved, places=going), program.start(_moved(arrays, coming)))

    return Direct(call, start)


def _moved(arrays: list[Any], places: Mapping[int, Sharding]) -> list[Any]:
    for index, place in places.items():
        arrays[index] = placed(arrays[index], place)
    return arrays
