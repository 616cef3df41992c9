"""Flattens functions among a call's arguments to their code and closure values.

A lambda that is created in each step always has the same code. Only the tensors that it closes over
differ, and they become inputs of the program.
"""

import dis
import functools
import types
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

CALLED = (types.FunctionType, functools.partial)
"""Types of callables that may be created for each call."""


class IdentityKey:
    """An object as a key, equal only to itself, and kept alive so that its id is not reused."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value: Any = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and other.value is self.value


def taken_apart(value: Any) -> tuple[tuple[Hashable, ...], tuple[str, ...], list[Any]] | None:
    """Returns a function's key, the names of its keywords, and the values that it holds.

    Returns None if the function has attributes, or assigns closure variables, which its creator
    would observe.
    """
    if value.__dict__:
        return None
    if isinstance(value, functools.partial):
        names = tuple(value.keywords)
        return (len(value.args),), names, [value.func, *value.args, *value.keywords.values()]
    code, cells = value.__code__, value.__closure__ or ()
    if _assigns(code):
        return None
    try:
        closed = [cell.cell_contents for cell in cells]
    except ValueError:  # an unbound variable
        return None
    defaults, named = value.__defaults__ or (), value.__kwdefaults__ or {}
    identity = value.__name__, value.__qualname__, value.__module__
    keys = IdentityKey(code), IdentityKey(value.__globals__), len(cells), len(defaults), *identity
    return keys, tuple(named), [*closed, *defaults, *named.values()]


def made_of(
    kind: type,
    keys: tuple[Any, ...],
    names: tuple[str, ...],
    parts: Callable[[], list[Any]],
    made: list[Any],
) -> Any:
    """Rebuild a function from `taken_apart` with other values.

    Args:
        kind: the class of the function.
        keys: its key.
        names: the names of its keywords.
        parts: an iterator of the values; one of them may be the function itself.
        made: a list, to which the function is appended before the values are read.
    """
    if kind is functools.partial:
        place = len(made)
        made.append(None)  # a partial cannot contain itself
        function, *values = parts()
        positional = keys[0]
        made[place] = functools.partial(
            function, *values[:positional], **dict(zip(names, values[positional:]))
        )
        return made[place]
    code, held, n_cells, n_defaults, name, qualified, module = keys
    cells = tuple(types.CellType() for _ in range(n_cells))
    new = types.FunctionType(code.value, held.value, name, None, cells)
    new.__qualname__, new.__module__ = qualified, module
    made.append(new)
    values = parts()
    for cell, value in zip(cells, values):
        cell.cell_contents = value
    behind = n_cells + n_defaults
    new.__defaults__ = tuple(values[n_cells:behind]) or None
    new.__kwdefaults__ = dict(zip(names, values[behind:])) or None
    return new


@lru_cache(maxsize=4096)
def _assigns(code: types.CodeType) -> bool:
    """Returns True if code, or a nested function, assigns a closure variable."""
    names = set(code.co_freevars)
    return bool(names) and any(
        one.opname in ("STORE_DEREF", "DELETE_DEREF") and one.argval in names
        for inner in _codes(code)
        for one in dis.get_instructions(inner)
    )


def _codes(code: types.CodeType) -> list[types.CodeType]:
    inside = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return [code, *(one for c in inside for one in _codes(c))]
