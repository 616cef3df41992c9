"""Name scopes of equations that represent several equations, as in the shared body of repeated
layers.

JAX keeps a stack of name scopes for each equation, which HLO and profiles use.
"""

import re
from collections.abc import Sequence
from typing import Any

_NUMBER = re.compile(r"\d+")


def shared(equations: Sequence[Any]) -> Any:
    """Returns the scopes that are common to some equations."""
    found = equations[0].source_info.name_stack
    for equation in equations:
        own = equation.source_info.name_stack
        if own is not found and own.stack != found.stack:
            while own[: len(found)] != found:
                found = found[:-1]
    return found


def within(equation: Any, depth: int) -> Any:
    """Returns an equation's scopes without this number of outer ones."""
    found = equation.source_info.name_stack
    return found[depth:] if depth else found


def merged(stacks: Sequence[Any]) -> Any:
    """Returns the common form of several scopes, with `*` for numbers that differ.

    For `layers.0/linear` and `layers.1/linear`, this is `layers.*/linear`. The result ends where
    the names differ.
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
    """Returns an equation with different scopes."""
    return equation.replace(source_info=equation.source_info.replace(name_stack=stack))
