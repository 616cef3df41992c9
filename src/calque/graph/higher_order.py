"""PyTorch's higher-order operators on arrays: control flow becomes JAX's control flow.

The first argument of a rule converts a subgraph to a function of arrays that returns a tuple, which
contains None where the subgraph returns None.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

Function = Callable[..., tuple[Any, ...]]
AsFunction = Callable[[Any], Function]
HIGHER_ORDER: dict[str, Callable[..., Any]] = {}
"""The rules by the name of the operator."""


def higher_order(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the rule of a higher-order operator."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        HIGHER_ORDER[name] = function
        return function

    return register


def _capturing(function: Function, captured: Sequence[Any]) -> Function:
    return lambda *arrays: function(*arrays, *captured)


@higher_order("cond")
def _cond(
    of: AsFunction, predicate: object, true: object, false: object, operands: Sequence[Any]
) -> Any:
    if not isinstance(predicate, Array):
        return of(true if predicate else false)(*operands)
    branches = [_capturing(of(graph), operands) for graph in (true, false)]
    return tuple(lax.cond(predicate.reshape(()), *branches))


@higher_order("while_loop")
def _while_loop(
    of: AsFunction, condition: object, body: object, carried: Sequence[Any], captured: Sequence[Any]
) -> Any:
    carry = tuple(jnp.asarray(v) for v in carried)
    test, step = _capturing(of(condition), captured), _capturing(of(body), captured)

    def next_carry(values: tuple[Array, ...]) -> tuple[Array, ...]:
        pairs = zip(step(*values), values, strict=True)
        return tuple(jnp.asarray(new, old.dtype) for new, old in pairs)

    return tuple(lax.while_loop(lambda values: test(*values)[0].reshape(()), next_carry, carry))


@higher_order("scan")
def _scan(
    of: AsFunction, combine: object, init: Sequence[Any], xs: Sequence[Any], captured: Sequence[Any]
) -> Any:
    step = _capturing(of(combine), captured)

    def body(carry: tuple[Array, ...], items: tuple[Array, ...]) -> Any:
        found = step(*carry, *items)
        return found[: len(carry)], found[len(carry) :]

    carry, outputs = lax.scan(body, tuple(init), tuple(xs))
    return (*carry, *outputs)


@higher_order("map_impl")
def _map(
    of: AsFunction,
    body: object,
    xs: Sequence[Any],
    captured: Sequence[Any],
    mutated_arg_indices: str = "",
) -> Any:
    if mutated_arg_indices:  # PyTorch 2.13 has no such argument
        raise NotImplementedError("map: the function writes to its arguments")
    step = _capturing(of(body), captured)
    return tuple(lax.map(lambda items: step(*items), tuple(xs)))


@higher_order("associative_scan")
def _associative_scan(
    of: AsFunction, combine: object, xs: Sequence[Any], captured: Sequence[Any]
) -> Any:
    step = _capturing(of(combine), captured)
    return tuple(lax.associative_scan(lambda a, b: step(*a, *b), tuple(xs)))


@higher_order("invoke_subgraph")
def _invoke_subgraph(of: AsFunction, graph: object, identifier: object, *operands: Any) -> Any:
    return of(graph)(*operands)
