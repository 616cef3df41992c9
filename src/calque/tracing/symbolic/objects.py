"""Programs that are callable objects other than modules and functions."""

import types
from collections.abc import Callable
from typing import Any

_OBJECT = "_calque_object"


def function_of(program: object) -> Callable[..., Any]:
    """Returns a function that calls an object, such as a bound method or a `functools.partial`.

    Raises:
        TypeError: it cannot be called.

    >>> function_of("aBc".lower)(), of_object(function_of("aBc".lower))()
    ('abc', 'abc')
    """
    if not callable(program):
        raise TypeError(f"{program!r} is not a module or a function")

    def called(*args: Any, **kwargs: Any) -> Any:
        return program(*args, **kwargs)

    vars(called)[_OBJECT] = program
    return called


def of_object(function: Any) -> Any:
    """Returns the object that a function from `function_of` calls; None for other functions."""
    program = getattr(function, "__dict__", {}).get(_OBJECT)
    method = getattr(program, "__call__", None)  # noqa: B004
    return method if isinstance(method, types.MethodType) else program
