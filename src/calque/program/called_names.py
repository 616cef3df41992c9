"""Whether the code of a module only calls what a name refers to, so that a function can take its
place: `float(step)`, but not `isinstance(step, float)`.
"""

import dis
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

_METHODS = (staticmethod, classmethod)


def only_calls(space: dict[str, Any], name: str) -> bool:
    """Returns True if the functions of a module only call a builtin.

    Args:
        space: the module's global variables.
        name: the name of the builtin, which the module has not redefined.
    """
    return name not in space and all(_only_calls(code, name) for code in _codes(space))


def _codes(space: dict[str, Any]) -> Iterator[CodeType]:
    for value in list(space.values()):
        inside = list(vars(value).values()) if isinstance(value, type) else (value,)
        for one in inside:
            parts = (one.fget, one.fset, one.fdel) if type(one) is property else (one,)
            for part in parts:
                function = part.__func__ if isinstance(part, _METHODS) else part
                while type(function) is FunctionType:
                    if function.__globals__ is space:
                        yield function.__code__
                    function = getattr(function, "__wrapped__", None)


@lru_cache(maxsize=16384)
def _only_calls(code: CodeType, name: str) -> bool:
    """Returns True if code, and what is nested in it, only calls a global.

    >>> def called(x):
    ...     return float(x), [float(y) for y in x]
    >>> def passed(x):
    ...     return map(float, x)
    >>> _only_calls(called.__code__, "float"), _only_calls(passed.__code__, "float")
    (True, False)
    """
    if name in code.co_names:
        for step in dis.get_instructions(code):
            is_callee = step.opname == "LOAD_GLOBAL" and bool((step.arg or 0) & 1)
            if step.argval == name and step.opname.startswith("LOAD_") and not is_callee:
                return False
    nested = (one for one in code.co_consts if isinstance(one, CodeType))
    return all(_only_calls(one, name) for one in nested)
