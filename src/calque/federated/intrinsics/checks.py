"""Checks of the operators' arguments, and their error messages."""

from collections.abc import Callable
from typing import Any

import numpy as np

from calque.federated.building_blocks import (
    BuildingBlock,
    Call,
    Lambda,
    Reference,
    Selection,
    Struct,
)
from calque.federated.errors import type_error
from calque.federated.tracing import bind, fresh, to_block, zip_call
from calque.federated.types import (
    CLIENTS,
    FederatedType,
    FunctionType,
    PlacementLiteral,
    SequenceType,
    StructType,
    TensorType,
    Type,
    is_assignable,
    walk,
)

INT32 = TensorType(np.dtype("int32"))


def placement_of(placement: Any) -> PlacementLiteral:
    """Returns a placement; raises an error for other values."""
    if not isinstance(placement, PlacementLiteral):
        raise type_error(
            f"{placement!r} is not a placement", "Use federated.CLIENTS or federated.SERVER."
        )
    return placement


def placed(value: Any, what: str, placement: PlacementLiteral | None = None) -> BuildingBlock:
    """Returns the block of a federated value, or of a zipped struct of them.

    Raises:
        FederatedTypeError: it has a different placement, or none; shows its type.
    """
    block = to_block(value)
    if isinstance(block, Struct) or isinstance(block.type, StructType):
        zipped = zip_call(block)
        block = bind(zipped)._block
    kind = block.type
    if not isinstance(kind, FederatedType):
        raise type_error(
            f"{what} expects a value {f'at {placement}' if placement else 'that is placed'}, not "
            f"{kind}",
            "Place it with federated_value.",
        )
    if placement not in (None, kind.placement):
        way = "federated_broadcast" if placement is CLIENTS else "federated_sum or federated_mean"
        raise type_error(
            f"{what} expects a value at {placement}, not {kind}", f"Move it with {way}."
        )
    return block


def function_of(value: Any, parameter: Type | None, what: str) -> BuildingBlock:
    """Returns the block of a function that takes `parameter`.

    Raises:
        FederatedTypeError: it takes a different type; shows both.
    """
    if not callable(value) and not hasattr(value, "__building_block__"):
        raise type_error(f"{what} expects a function, not {value!r}", "Pass a function.")
    block = _by_position(to_block(value, FunctionType(parameter, INT32)), parameter)
    kind = block.type
    if not isinstance(kind, FunctionType):
        raise type_error(
            f"{what} expects a function, not a value of type {kind}", "Pass a function."
        )
    if any(isinstance(part, FederatedType) for part in walk(kind.result)):
        raise type_error(
            f"{what} calls a function that returns {kind.result}, because it uses a value that "
            "is placed",
            "Pass that value as an argument: federated_zip, after federated_broadcast if it is "
            "on the server.",
        )
    taken = kind.parameter
    fits = taken is parameter is None or (
        taken is not None and parameter is not None and is_assignable(taken, parameter)
    )
    if not fits:
        raise type_error(
            f"{what} calls a function that takes {taken or 'no argument'} with "
            f"{parameter or 'no argument'}",
            "Declare the function with the type of its argument.",
        )
    return block


def _by_position(function: BuildingBlock, given: Type | None) -> BuildingBlock:
    """Returns a function with named parameters as a function that takes them by position."""
    taken = function.type.parameter if isinstance(function.type, FunctionType) else None
    if not isinstance(taken, StructType) or not isinstance(given, StructType):
        return function
    if len(taken) != len(given) or taken.names == given.names or set(given.names) != {None}:
        return function
    if not is_assignable(StructType(tuple((None, part) for part in taken)), given):
        return function
    name = fresh("arg")
    parts = (Selection(Reference(name, given), index) for index in range(len(given)))
    argument = Struct(tuple(zip(taken.names, parts, strict=True)))
    return Lambda(name, given, Call(function, argument))


def result_of(function: BuildingBlock) -> Type:
    """Returns the result type of a function."""
    assert isinstance(function.type, FunctionType)
    return function.type.result


def pair(first: Type, second: Type) -> StructType:
    """Returns the type of two values without names."""
    return StructType(((None, first), (None, second)))


def accumulation(
    value: Any, zero: Any, accumulate: Callable[..., Any], what: str
) -> tuple[BuildingBlock, BuildingBlock, BuildingBlock]:
    """Returns the blocks of the value, the initial value and the step of a sequential reduction."""
    argument = placed(value, what, CLIENTS)
    start = to_block(zero)
    assert isinstance(argument.type, FederatedType)
    if isinstance(start.type, FederatedType | FunctionType):
        raise type_error(f"{what} begins with {start.type}", "Pass a zero that is not placed.")
    step = function_of(accumulate, pair(start.type, argument.type.member), what)
    if not is_assignable(start.type, result_of(step)):
        raise type_error(
            f"{what} starts with {start.type}, but a step returns {result_of(step)}",
            "Return a value of the type of zero.",
        )
    return argument, start, step


def whole_number(value: Any, what: str) -> int:
    """Returns an integer, whose value must be known while tracing.

    Raises:
        FederatedTypeError: it is not a known integer.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise type_error(f"{what} is {value!r}", "Pass a Python integer.")
    return int(value)


def is_a_number(dtype: np.dtype, kinds: str) -> bool:
    """Returns True if a dtype is of one of these NumPy kinds and has a zero."""
    return dtype.kind in kinds and not np.zeros((), np.float32).astype(dtype)


def require_kinds(argument: BuildingBlock, kinds: str, what: str, expected: str) -> None:
    """Raise unless all tensors have dtypes of these NumPy kinds; "V" means 8-bit floats and
    bfloat16. A dtype without zero (float8_e8m0fnu) can't be aggregated.
    """
    for part in walk(argument.type):
        wrong = isinstance(part, TensorType) and not is_a_number(part.dtype, kinds)
        if wrong or isinstance(part, SequenceType):
            raise type_error(
                f"{what} expects {expected}, not {argument.type}",
                "Convert it on the clients with federated_map.",
            )
