"""Name scopes of equations that represent several: repeated layers share one body and one name.

JAX keeps a stack of name scopes with each equation, from which HLO and profiles take names.
"""

import re
from collections.abc import Sequence
from typing import Any

_NUMBER = re.compile(r"\d+")


def shared(equations: Sequence[Any]) -> Any:
    """Returns the scopes that contain all of some equations."""
    found = equations[0].source_info.name_stack
    for equation in equations:
        own = equation.source_info.name_stack
        while own[: len(found)] != found:
            found = found[:-1]
    return found


def merged(stacks: Sequence[Any]) -> Any:
    """Returns the common form of several scopes: numbers that differ become `*`.

    Of `layers.0/linear` and `layers.1/linear` that is `layers.*/linear`. Where scopes have
    different names the result ends.
    """
    first = stacks[0]
    if all(stack == first for stack in stacks):
        return first
    found = first[:0]
    for scopes in zip(*(stack.stack for stack in stacks), strict=False):
        names = {str(getattr(scope, "name", scope)) for scope in scopes}
        if len(names) > 1:
            names = {_NUMBER.sub("*", name) for name in names}
        if len(names) > 1:
            break
        found = found.extend(names.pop())
    return found


def renamed(equation: Any, stack: Any) -> Any:
    """Returns an equation in other scopes."""
    return equation.replace(source_info=equation.source_info.replace(name_stack=stack))
