"""The operators on values on the clients and on the server."""

from typing import Any

import numpy as np

from calque.errors import with_user_frames
from calque.federated.building_blocks import BuildingBlock, Call, Data, Literal
from calque.federated.errors import type_error
from calque.federated.intrinsics.checks import (
    INT32,
    accumulation,
    function_of,
    is_a_number,
    pair,
    placed,
    placement_of,
    require_kinds,
    result_of,
    whole_number,
)
from calque.federated.tracing import (
    Value,
    bind,
    intrinsic_call,
    map_call,
    required,
    to_block,
    unnamed,
    zip_call,
)
from calque.federated.types import (
    CLIENTS,
    SERVER,
    FederatedType,
    PlacementLiteral,
    SequenceType,
    TensorType,
    is_assignable,
    to_type,
    walk,
)


@with_user_frames
def federated_value(value: Any, placement: PlacementLiteral) -> Value:
    """Places a value: `T` becomes `T@CLIENTS` (the same on all clients) or `T@SERVER`.

    Args:
        value: a value without a placement: an array, a number, or a container of these.
        placement: CLIENTS or SERVER.
    """
    required("federated_value")
    block = to_block(value)
    if isinstance(block.type, FederatedType):
        raise type_error(
            f"federated_value expects a value that is not placed, not {block.type}",
            "Use federated_broadcast to send it from the server to the clients.",
        )
    uri = f"federated_value_at_{placement_of(placement).value.lower()}"
    result = FederatedType(block.type, placement, True)
    return bind(intrinsic_call(uri, block, result))


@with_user_frames
def federated_eval(function: Any, placement: PlacementLiteral) -> Value:
    """Evaluates a function without parameters at a placement.

    Args:
        function: `( -> T)`.
        placement: CLIENTS gives `{T}@CLIENTS`, SERVER `T@SERVER`.
    """
    required("federated_eval")
    block = function_of(function, None, "federated_eval")
    uri = f"federated_eval_at_{placement_of(placement).value.lower()}"
    return bind(intrinsic_call(uri, block, FederatedType(result_of(block), placement)))


@with_user_frames
def federated_map(function: Any, value: Any) -> Value:
    """Applies a function to every client's value, or to the server's value.

    Args:
        function: `(T -> U)`: a computation, or a Python function of values.
        value: `{T}@CLIENTS` or `T@SERVER`; a struct of such values is zipped.

    Returns:
        `{U}@CLIENTS` or `U@SERVER`.
    """
    required("federated_map")
    argument = placed(value, "federated_map")
    kind = argument.type
    assert isinstance(kind, FederatedType)
    block = function_of(function, kind.member, "federated_map")
    return bind(map_call(block, argument))


@with_user_frames
def federated_zip(value: Any) -> Value:
    """Combines a struct of values with the same placement into one placed struct.

    Args:
        value: for example `<{T}@CLIENTS,{U}@CLIENTS>`; nested structs are zipped too.

    Returns:
        `{<T,U>}@CLIENTS`.
    """
    required("federated_zip")
    return bind(zip_call(to_block(value)))


@with_user_frames
def federated_broadcast(value: Any) -> Value:
    """Sends the server's value to every client: `T@SERVER` becomes `T@CLIENTS`.

    Args:
        value: `T@SERVER`; a struct of such values is zipped.
    """
    required("federated_broadcast")
    argument = placed(value, "federated_broadcast", SERVER)
    assert isinstance(argument.type, FederatedType)
    result = FederatedType(argument.type.member, CLIENTS, True)
    return bind(intrinsic_call("federated_broadcast", argument, result))


@with_user_frames
def federated_sum(value: Any) -> Value:
    """Returns the sum of the clients' values, on the server, in the same dtype.

    Integers whose sum does not fit the dtype are an error; `configured(check=False)` wraps around.

    Args:
        value: `{T}@CLIENTS`, `T` of numbers.
    """
    return _aggregated("federated_sum", value, "iufcV", "numbers")


@with_user_frames
def federated_mean(value: Any, weight: Any = None) -> Value:
    """Returns the mean of the clients' values, on the server.

    Args:
        value: `{T}@CLIENTS`, `T` of floats or complex numbers.
        weight: `{W}@CLIENTS`, `W` a real number; by default all clients have the same weight.
            Weights that add up to zero are an error at run time; with `check=False`, and when JAX
            traces the computation, they give NaN.
    """
    if weight is None:
        return _aggregated("federated_mean", value, "fcV", "floats")
    required("federated_mean")
    argument = placed(value, "federated_mean", CLIENTS)
    weights = placed(weight, "federated_mean", CLIENTS)
    require_kinds(argument, "fcV", "federated_mean", "floats")
    member = weights.type.member if isinstance(weights.type, FederatedType) else None
    if not isinstance(member, TensorType) or member.shape or not is_a_number(member.dtype, "iufV"):
        raise type_error(
            f"federated_mean cannot weight {argument.type} by {weights.type}",
            "Pass one real number for each client as the weight.",
        )
    both = unnamed(argument, weights)
    return bind(intrinsic_call("federated_weighted_mean", both, _at_server(argument)))


@with_user_frames
def federated_min(value: Any) -> Value:
    """Returns the elementwise minimum of the clients' values, on the server.

    Args:
        value: `{T}@CLIENTS`, `T` of real numbers or booleans.
    """
    return _aggregated("federated_min", value, "biufV", "real numbers")


@with_user_frames
def federated_max(value: Any) -> Value:
    """Returns the elementwise maximum of the clients' values, on the server.

    Args:
        value: `{T}@CLIENTS`, `T` of real numbers or booleans.
    """
    return _aggregated("federated_max", value, "biufV", "real numbers")


@with_user_frames
def federated_aggregate(value: Any, zero: Any, accumulate: Any, merge: Any, report: Any) -> Value:
    """Aggregates the clients' values with your own functions.

    Args:
        value: `{T}@CLIENTS`.
        zero: `U`, the initial value of the accumulation, which must be neutral for `merge`.
        accumulate: `(<U,T> -> U)`.
        merge: `(<U,U> -> U)`, which combines the accumulated values of several devices.
        report: `(U -> R)`.

    Returns:
        `R@SERVER`.
    """
    required("federated_aggregate")
    argument, start, step = accumulation(value, zero, accumulate, "federated_aggregate")
    merged = function_of(merge, pair(start.type, start.type), "federated_aggregate")
    if not is_assignable(start.type, result_of(merged)):
        raise type_error(
            f"merge must return {start.type}, but returns {result_of(merged)}",
            "Return a value of the type of zero.",
        )
    reported = function_of(report, start.type, "federated_aggregate")
    parts = unnamed(argument, start, step, merged, reported)
    result = FederatedType(result_of(reported), SERVER)
    return bind(intrinsic_call("federated_aggregate", parts, result))


@with_user_frames
def federated_reduce(value: Any, zero: Any, op: Any) -> Value:
    """Returns `op(op(zero, first), second), …` over the clients, in order.

    If several devices share the clients, all values must be kept in memory, which
    `federated_aggregate` avoids.

    Args:
        value: `{T}@CLIENTS`.
        zero: `U`.
        op: `(<U,T> -> U)`.

    Returns:
        `U@SERVER`.
    """
    required("federated_reduce")
    parts = accumulation(value, zero, op, "federated_reduce")
    result = FederatedType(parts[1].type, SERVER)
    return bind(intrinsic_call("federated_reduce", unnamed(*parts), result))


@with_user_frames
def federated_collect(value: Any) -> Value:
    """Returns all clients' values as a sequence on the server; memory grows with their number.

    Args:
        value: `{T}@CLIENTS`.

    Returns:
        `T*@SERVER`, in the order of the clients.
    """
    required("federated_collect")
    argument = placed(value, "federated_collect", CLIENTS)
    assert isinstance(argument.type, FederatedType)
    result = FederatedType(SequenceType(argument.type.member), SERVER)
    return bind(intrinsic_call("federated_collect", argument, result))


@with_user_frames
def federated_select(client_keys: Any, max_key: int, server_value: Any, select: Any) -> Value:
    """Sends each client the parts of the server's value that it requests by keys.

    Args:
        client_keys: `{int32[n]}@CLIENTS`, each at least 0 and below `max_key`.
        max_key: an integer.
        server_value: `T@SERVER`.
        select: `(<T,int32> -> U)`.

    Returns:
        `{U*}@CLIENTS`, in the order of the keys.
    """
    required("federated_select")
    keys = placed(client_keys, "federated_select", CLIENTS)
    whole = placed(server_value, "federated_select", SERVER)
    assert isinstance(keys.type, FederatedType) and isinstance(whole.type, FederatedType)
    if not is_assignable(to_type("int32[?]"), keys.type.member):
        raise type_error(
            f"the keys of federated_select have type {keys.type}",
            "Pass keys of type {int32[n]}@CLIENTS.",
        )
    chosen = function_of(select, pair(whole.type.member, INT32), "federated_select")
    limit = whole_number(max_key, "max_key of federated_select")
    parts = unnamed(keys, Literal(np.array(limit, np.int32)), whole, chosen)
    result = FederatedType(SequenceType(result_of(chosen)), CLIENTS)
    return bind(intrinsic_call("federated_select", parts, result))


@with_user_frames
def federated_secure_sum(value: Any, bitwidth: int) -> Value:
    """Returns the sum of integers, without revealing any single client's value.

    The protocol is simulated: each value is hidden by masks that pairs of clients share, and that
        cancel in the sum. If a client's value is negative or has more bits, an error names the
    client. If there are so many clients that the sum may not fit the dtype, that is an error too.

    Args:
        value: `{T}@CLIENTS`, `T` of integers of 8 to 64 bits.
        bitwidth: the number of bits of a value, less than the dtype's.
    """
    required("federated_secure_sum")
    argument = placed(value, "federated_secure_sum", CLIENTS)
    require_kinds(argument, "iu", "federated_secure_sum", "integers")
    widest = min(
        np.iinfo(part.dtype).bits - (part.dtype.kind == "i")
        for part in walk(argument.type)
        if isinstance(part, TensorType)
    )
    bits = whole_number(bitwidth, "the bit width of federated_secure_sum")
    if not 1 <= bits <= widest:
        raise type_error(
            f"{argument.type} has no values of {bits} bits", f"Use 1 to {widest} bits."
        )
    parts = unnamed(argument, Literal(np.array(bits, np.int32)))
    return bind(intrinsic_call("federated_secure_sum", parts, _at_server(argument)))


@with_user_frames
def data(uri: str, kind: Any) -> Value:
    """Returns data that is supplied at run time: `computation.configured(data={uri: value})`.

    Args:
        uri: the key of the data.
        kind: its type, as for `to_type`.
    """
    return Value(Data(uri, to_type(kind)), required("data"))


def _aggregated(uri: str, value: Any, kinds: str, expected: str) -> Value:
    required(uri)
    argument = placed(value, uri, CLIENTS)
    require_kinds(argument, kinds, uri, expected)
    call: Call = intrinsic_call(uri, argument, _at_server(argument))
    return bind(call)


def _at_server(argument: BuildingBlock) -> FederatedType:
    assert isinstance(argument.type, FederatedType)
    return FederatedType(argument.type.member, SERVER)
