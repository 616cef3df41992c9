"""Arguments of a program, by the names of its parameters."""

import inspect
from typing import Any


def bound_to(
    signature: inspect.Signature, name: str, /, *args: Any, **kwargs: Any
) -> dict[str, Any]:
    """Returns the arguments that each parameter gets in a call.

    Raises:
        TypeError: the arguments do not fit the signature.

    >>> def program(x, scale=2): ...
    >>> bound_to(inspect.signature(program), "program", 1)
    {'x': 1}
    """
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        signature = signature.replace(return_annotation=inspect.Signature.empty)
        what = f"the program {name}{signature} cannot be called with these arguments"
        raise TypeError(f"{what}: {error}") from None
