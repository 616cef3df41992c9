"""Arguments of a program, by the names of its parameters."""

import dataclasses
import inspect
from typing import Any

from calque.tracing.core.errors import SymbolicTraceError


def bound_to(
    signature: inspect.Signature, name: str, /, *args: Any, **kwargs: Any
) -> dict[str, Any]:
    """Returns the arguments that each parameter gets in a call.

    Raises:
        TypeError: the arguments do not fit the signature.
        TraceError: a container among them contains itself.

    >>> def program(x, scale=2): ...
    >>> bound_to(inspect.signature(program), "program", 1)
    {'x': 1}
    """
    try:
        bound = dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        signature = signature.replace(return_annotation=inspect.Signature.empty)
        what = f"the program {name}{signature} cannot be called with these arguments"
        raise TypeError(f"{what}: {error}") from None
    for argument, given in bound.items():
        if _contains(given, ()):
            raise SymbolicTraceError(
                f"the argument {argument} of {name} contains itself, so that a graph, which takes "
                "arguments apart, would never come to an end.\nPass its parts."
            )
    return bound


def _contains(given: Any, around: tuple[int, ...]) -> bool:
    """Returns True if a list, dictionary or data class object contains one of those around it."""
    parts: Any = ()
    if isinstance(given, dict):
        parts = given.values()
    elif isinstance(given, (tuple, list)):
        parts = given
    elif dataclasses.is_dataclass(given) and not isinstance(given, type):
        parts = vars(given).values() if hasattr(given, "__dict__") else ()
    around = (*around, id(given)) if parts else around
    return any(id(part) in around or _contains(part, around) for part in parts)
