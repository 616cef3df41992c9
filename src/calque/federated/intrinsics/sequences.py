"""The operators on sequences without a placement, on the clients, and on the server."""

from collections.abc import Callable
from typing import Any

from calque.errors import with_user_frames
from calque.federated.building_blocks import BuildingBlock
from calque.federated.errors import type_error
from calque.federated.intrinsics.checks import function_of, pair, result_of
from calque.federated.tracing import (
    Value,
    bind,
    intrinsic_call,
    map_call,
    required,
    to_block,
    trace,
    unnamed,
)
from calque.federated.types import FederatedType, SequenceType, TensorType, is_assignable, walk


@with_user_frames
def sequence_map(function: Any, sequence: Any) -> Value:
    """Applies a function to every element.

    Args:
        function: `(T -> U)`.
        sequence: `T*`, or one on the clients or on the server.

    Returns:
        `U*`, where the sequence is placed.
    """

    def mapped(value: Value) -> Value:
        block = to_block(value)
        block_of = function_of(function, _element(block, "sequence_map"), "sequence_map")
        result = SequenceType(result_of(block_of))
        return bind(intrinsic_call("sequence_map", unnamed(block_of, block), result))

    return _where_it_lives("sequence_map", mapped, sequence)


@with_user_frames
def sequence_reduce(sequence: Any, zero: Any, op: Any) -> Value:
    """Returns `op(op(zero, first), second), …` over the elements.

    Args:
        sequence: `T*`, or one on the clients or on the server.
        zero: `U`.
        op: `(<U,T> -> U)`.

    Returns:
        `U`, where the sequence is placed.
    """

    def reduced(value: Value) -> Value:
        block, start = to_block(value), to_block(zero)
        element = _element(block, "sequence_reduce")
        step = function_of(op, pair(start.type, element), "sequence_reduce")
        if not is_assignable(start.type, result_of(step)):
            raise type_error(
                f"sequence_reduce starts with {start.type}, but a step returns {result_of(step)}",
                "Return a value of the type of zero.",
            )
        return bind(intrinsic_call("sequence_reduce", unnamed(block, start, step), start.type))

    return _where_it_lives("sequence_reduce", reduced, sequence)


@with_user_frames
def sequence_sum(sequence: Any) -> Value:
    """Returns the sum of the elements, in their dtype.

    Integers whose sum does not fit the dtype are an error that names the client; inside another
    operator's function, and with `configured(check=False)`, the sum wraps around.

    Args:
        sequence: `T*` of numbers, or one on the clients or on the server.

    Returns:
        `T`, where the sequence is placed.
    """

    def summed(value: Value) -> Value:
        block = to_block(value)
        element = _element(block, "sequence_sum")
        if any(isinstance(t, TensorType) and t.dtype.kind == "b" for t in walk(element)):
            raise type_error(
                f"sequence_sum expects a sequence of numbers, not {block.type}",
                "Convert the elements with sequence_map.",
            )
        return bind(intrinsic_call("sequence_sum", block, element))

    return _where_it_lives("sequence_sum", summed, sequence)


def _where_it_lives(what: str, operator: Callable[[Value], Value], sequence: Any) -> Value:
    """Applies an operator to a sequence, in a map if the sequence is placed."""
    required(what)
    block = to_block(sequence)
    if isinstance(block.type, FederatedType):
        return bind(map_call(trace(operator, block.type.member), block))
    return operator(sequence)


def _element(block: BuildingBlock, what: str) -> Any:
    if not isinstance(block.type, SequenceType):
        raise type_error(f"{what} expects a sequence, not {block.type}", "Pass T*.")
    return block.type.element
