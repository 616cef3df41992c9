"""The parameters of a Python function that is traced for an argument of a given type."""

import inspect
from collections.abc import Callable
from typing import Any

from calque.federated.errors import type_error
from calque.federated.types import StructType, Type

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def takes_fields(function: Callable[..., Any], parameter: Type) -> bool:
    """Returns True if a struct has as many fields as a function has required parameters."""
    if not isinstance(parameter, StructType) or len(parameter) < 2:
        return False
    try:
        own = inspect.signature(function, follow_wrapped=False)
        many = any(p.kind is p.VAR_POSITIONAL for p in own.parameters.values())
        signature = inspect.signature(function) if many else own
    except (TypeError, ValueError):  # a C function without a signature
        return False
    taken = signature.parameters.values()
    required = [p for p in taken if p.default is p.empty and p.kind in _BY_POSITION]
    return len(required) == len(parameter)


def require_one_parameter(function: Callable[..., Any], parameter: Type) -> None:
    """Raise unless a function can be called with one argument.

    Raises:
        FederatedTypeError: it cannot; shows its parameters and the type of the argument.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise type_error(
            f"the function {name!r} has the parameters {signature}, but is called with an argument "
            f"of type {parameter}: {error}",
            "Give it one parameter, or one for each field of a struct.",
        ) from None
