"""Checks whether code reads more of an optimizer's dicts than items with constant keys.

Numbers of param groups are inputs of a program, so reads of a number by code outside the
optimizer's step must be found. `group["lr"]` names the number; `dict(group)` reads all of them.
"""

import dis
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

_HIDDEN = frozenset(("CACHE", "PRECALL", "EXTENDED_ARG", "NOP", "RESUME", "PUSH_NULL"))
_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD"))
_OF_DICTS = frozenset(("items", "values", "get", "pop", "setdefault", "copy", "update"))
_STORES = frozenset(("STORE_SUBSCR", "DELETE_SUBSCR"))
_INLINED = frozenset(("LOAD_FAST_AND_CLEAR", "SWAP", "BUILD_LIST", "BUILD_SET", "BUILD_MAP"))
"""The instructions before the loop of an inlined comprehension."""


class _Step(NamedTuple):
    """An instruction."""

    opname: str
    argval: Any


def _steps_of(code: CodeType) -> Iterator[_Step]:
    for one in dis.get_instructions(code):
        if one.opname in _HIDDEN:
            continue
        # An instruction that combines two.
        if isinstance(one.argval, tuple) and one.opname.count("_FAST") == 2:
            first, second = one.opname.split("_FAST_")
            yield _Step(f"{first}_FAST", one.argval[0])
            yield _Step(second, one.argval[1])
        else:
            yield _Step(one.opname, one.argval)


@lru_cache(maxsize=16384)
def reads_all(code: CodeType, name: str) -> bool:
    """Returns True if code may read anything reachable through the attribute `name`.

    >>> def rate(optimizer):
    ...     return [group["lr"] for group in optimizer.param_groups]
    >>> def rates(optimizer):
    ...     return [dict(group) for group in optimizer.param_groups]
    >>> reads_all(rate.__code__, "param_groups"), reads_all(rates.__code__, "param_groups")
    (False, True)
    """
    if name in code.co_consts:  # `getattr(optimizer, "param_groups")`
        return True
    if name not in code.co_names:
        return False
    steps = list(_steps_of(code))
    loads = [i for i, one in enumerate(steps) if one.opname in _ATTRIBUTES and one.argval == name]
    return not all(_is_by_key(steps, i + 1, code) for i in loads)


def _is_by_key(steps: list[_Step], place: int, code: CodeType) -> bool:
    """Returns True if code only takes items by constant keys from the loaded value.

    Args:
        steps: the instructions of the code.
        place: the index of the instruction after the load.
        code: the code.
    """
    one = _at(steps, place)
    if one.opname in _ATTRIBUTES:
        if one.argval not in ("values", "items"):
            return one.argval not in _OF_DICTS  # not a dict
        return one.argval == "values" and _is_by_key(steps, place + 2, code)
    if one.opname == "GET_ITER":
        return _is_gone_through(steps, place + 1, code)
    if _at(steps, place + 1).opname == "BINARY_SUBSCR":
        named = one.opname == "LOAD_CONST" and isinstance(one.argval, str)
        return named or _is_by_key(steps, place + 2, code)
    # A subscript of several instructions.
    while one.opname.startswith("LOAD_") and place < len(steps):
        place += 1
        one = _at(steps, place)
    if one.opname == "BINARY_SUBSCR":
        return _is_by_key(steps, place + 1, code)
    return one.opname in _STORES


def _is_gone_through(steps: list[_Step], place: int, code: CodeType) -> bool:
    """Returns True if code only takes items by constant keys from each element of a loop."""
    while _at(steps, place).opname in _INLINED and place < len(steps):
        place += 1
    one, held = _at(steps, place), _at(steps, place + 1)
    if one.opname == "FOR_ITER" and held.opname == "STORE_FAST":
        return _is_taken_apart(steps, held.argval)
    if one.opname != "CALL":
        return False
    inner = [c for c in code.co_consts if isinstance(c, CodeType) and c.co_varnames[:1] == (".0",)]
    for comprehension in inner:
        parts = list(_steps_of(comprehension))
        first = next((i for i, part in enumerate(parts) if part.opname == "FOR_ITER"), len(parts))
        if not _is_gone_through(parts, first, comprehension):
            return False
    return bool(inner)


def _is_taken_apart(steps: list[_Step], variable: str) -> bool:
    for i, one in enumerate(steps):
        cleared = one.opname == "LOAD_FAST_AND_CLEAR"
        if one.opname.startswith("LOAD_") and one.argval == variable and not cleared:
            key, use = _at(steps, i + 1), _at(steps, i + 2)
            named = key.opname == "LOAD_CONST" and isinstance(key.argval, str)
            copied = use.opname == "COPY"  # `group["lr"] *= 0.5`
            if not named or not (copied or "SUBSCR" in use.opname):
                return False
    return True


def _at(steps: list[_Step], place: int) -> _Step:
    return steps[min(place, len(steps) - 1)]
