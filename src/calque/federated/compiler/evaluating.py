"""Evaluates blocks on held values: JAX arrays or tracers.

The placement of a value makes no difference here: a program on the clients is evaluated for one
client, and the caller maps it over all.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from calque.federated.building_blocks import (
    Block,
    BuildingBlock,
    Call,
    CompiledComputation,
    Data,
    Intrinsic,
    Lambda,
    Literal,
    Reference,
    Selection,
    Struct,
)
from calque.federated.compiler.overflow import notice, unnoticed
from calque.federated.errors import type_error
from calque.federated.representation import Sequence
from calque.federated.types import (
    SequenceType,
    StructType,
    TensorType,
    Type,
    is_assignable,
)

Environment = Mapping[str, Any]

_NARROWED = {"float64": "float32", "int64": "int32", "complex128": "complex64"}


def evaluate(block: BuildingBlock, environment: Environment) -> Any:
    """Returns the held value of a block, which for functions is a Python function.

    Args:
        block: a block without aggregations, which `passes` handles.
        environment: the values of names, and of data by URI.
    """
    match block:
        case Reference():
            return environment[block.name]
        case Data():
            return environment[block.uri]
        case Selection():
            return evaluate(block.source, environment)[block.index]
        case Struct():
            return tuple(evaluate(part, environment) for part in block.children())
        case Literal():
            return jnp.asarray(block.value)
        case Block():
            inner = dict(environment)
            for name, value in block.locals:
                inner[name] = evaluate(value, inner)
            return evaluate(block.result, inner)
        case Lambda():
            return _closure(block, environment)
        case CompiledComputation():
            return _checked(block)
        case Intrinsic():
            return IMPLEMENTATIONS[block.uri]
        case Call():
            function = evaluate(block.function, environment)
            held = [] if block.argument is None else [evaluate(block.argument, environment)]
            result = function(*held)
            if isinstance(block.function, Intrinsic) and block.function.uri == "sequence_sum":
                notice(held[0], result, block.origin)
            return result
    raise type_error(f"{block} of type {block.type} cannot be computed", "Pass a value instead.")


def _closure(block: Lambda, environment: Environment) -> Callable[..., Any]:
    if block.parameter is None:
        return lambda: evaluate(block.result, environment)
    name = block.parameter
    return lambda held: evaluate(block.result, {**environment, name: held})


def _checked(block: CompiledComputation) -> Callable[..., Any]:
    """Wraps a function of tensors to check its result against its type."""

    def call(*held: Any) -> Any:
        with unnoticed():
            result = _in_dtypes(block.function(*held), block.type.result)
        if not _conforms(result, block.type.result):
            found = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", result)
            raise type_error(
                f"the function {block.name!r} returned {block.type.result} when it was traced, "
                f"but {jax.tree.leaves(found)} for these arguments",
                "Declare the sizes of its parameters, so that its result type is known.",
            )
        return result

    return call


def _in_dtypes(held: object, kind: Type) -> Any:
    """Converts arrays to the dtypes of a type.

    Python numbers give weakly typed arrays, which the next function would promote differently, and
    JAX's 64-bit mode gives wider ones.
    """
    if isinstance(kind, StructType) and isinstance(held, tuple) and len(held) == len(kind):
        return tuple(_in_dtypes(h, t) for h, t in zip(held, kind, strict=True))
    if isinstance(kind, TensorType) and isinstance(held, jax.Array):
        if held.dtype == kind.dtype or _NARROWED.get(held.dtype.name) == kind.dtype.name:
            return jax.lax.convert_element_type(held, kind.dtype)
    return held


def _conforms(held: Any, kind: Type) -> bool:
    match kind:
        case TensorType():
            return is_assignable(kind, TensorType(held.dtype, held.shape))
        case StructType():
            return all(_conforms(h, t) for h, t in zip(held, kind, strict=True))
        case SequenceType():
            return True  # the function itself stacked its elements
    return True


def _itself(held: object) -> Any:
    return held


def _mapped(held: Any) -> Any:
    function, value = held
    return function(value)


def _select(held: Any) -> Sequence:
    keys, _, value, function = held
    with unnoticed():
        chosen = jax.vmap(lambda key: function((value, key)))(keys)
    return Sequence(chosen, jnp.asarray(keys.shape[0], jnp.int32))


def _sequence_map(held: Any) -> Sequence:
    function, sequence = held

    def filled(leaf: Any) -> Any:
        """Fills padding with copies of the first element, so that no derivative is NaN."""
        counts = sequence.mask.reshape(-1, *[1] * (leaf.ndim - 1))
        return jnp.where(counts, leaf, leaf[:1])

    elements = jax.tree.map(filled, sequence.elements) if sequence.capacity else sequence.elements
    with unnoticed():
        return Sequence(jax.vmap(function)(elements), sequence.length)


def _sequence_reduce(held: Any) -> Any:
    sequence, zero, function = held
    with unnoticed():
        return sequence.reduce(zero, lambda carry, element: function((carry, element)))


IMPLEMENTATIONS: dict[str, Callable[[Any], Any]] = {
    "federated_value_at_clients": _itself,
    "federated_value_at_server": _itself,
    "federated_eval_at_clients": lambda function: function(),
    "federated_eval_at_server": lambda function: function(),
    "federated_map": _mapped,
    "federated_map_all_equal": _mapped,
    "federated_apply": _mapped,
    "federated_zip": _itself,
    "federated_broadcast": _itself,
    "federated_select": _select,
    "sequence_map": _sequence_map,
    "sequence_reduce": _sequence_reduce,
    "sequence_sum": lambda sequence: sequence.sum(),
}
"""The implementations of the intrinsics that are not aggregations."""
