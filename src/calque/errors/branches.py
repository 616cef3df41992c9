"""Finds out from running code whether a truth value only decides if an exception is raised.

`if labels.max() >= n: raise ValueError(...)` and `assert mask.all()` read a value only to check it.
Such code can be recognized by its bytecode: a conditional jump with straight-line code on one side
that ends in `raise`, outside of any `try` of the function and of any `except` around its callers.
An exception that Python itself handles does not count: `getattr` with a default catches
AttributeError.
"""

import dis
import linecache
import os
from functools import lru_cache
from types import CodeType, FrameType

from calque.errors.frames import is_library

_JUMPS = ("POP_JUMP_IF_", "POP_JUMP_FORWARD_IF_")
_PASSED = frozenset(("CACHE", "TO_BOOL", "NOT_TAKEN"))
_STRAIGHT = frozenset(
    (
        *("BINARY_OP", "BINARY_SUBSCR", "BUILD_MAP", "BUILD_STRING", "BUILD_TUPLE", "CACHE"),
        *("CALL", "CALL_KW", "COMPARE_OP", "CONVERT_VALUE", "COPY", "FORMAT_SIMPLE"),
        *("FORMAT_VALUE", "FORMAT_WITH_SPEC", "KW_NAMES", "LOAD_ASSERTION_ERROR", "LOAD_ATTR"),
        *("LOAD_COMMON_CONSTANT", "LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_FAST_BORROW"),
        *("LOAD_FAST_LOAD_FAST", "LOAD_GLOBAL", "LOAD_METHOD", "LOAD_SMALL_INT", "NOP"),
        *("NOT_TAKEN", "PRECALL", "PUSH_NULL", "RESUME"),
    )
)
_SUBSCRIPTS = frozenset(
    ("BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR", "BINARY_SLICE", "STORE_SLICE")
)
_LONGEST = 200
_CALQUE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PROTOCOL = frozenset(("AttributeError", "StopIteration", "StopAsyncIteration"))
_OF_ITEMS = frozenset(("IndexError", "KeyError"))
"""Exceptions by which methods of Python's protocols report a missing item."""


def harmless_answer(frame: FrameType) -> bool | None:
    """Returns the truth value for which a frame that is reading one does not raise.

    None if anything else depends on it, or if that is unknown.
    """
    answer = _answer(frame.f_code, frame.f_lasti)
    return None if answer is None or _is_caught_by_a_caller(frame.f_back) else answer


def line_of(frame: FrameType) -> str:
    """Returns the current source line of a frame, stripped."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()


def is_subscript(frame: FrameType) -> bool:
    """Returns True if a frame reads or writes items now: `x[i]`, `x[i] = y`, `x[i:j]`."""
    return _is_subscript(frame.f_code, frame.f_lasti)


@lru_cache(maxsize=1024)
def _is_subscript(code: CodeType, at: int) -> bool:
    one = next((i for i in dis.get_instructions(code) if i.offset == at), None)
    if one is None:
        return False
    return one.opname in _SUBSCRIPTS or (one.opname == "BINARY_OP" and one.argrepr == "[]")


@lru_cache(maxsize=1024)
def _answer(code: CodeType, at: int) -> bool | None:
    instructions = list(dis.get_instructions(code))
    index = next((i for i, one in enumerate(instructions) if one.offset == at), None)
    if index is None:
        return None
    if not instructions[index].opname.startswith(_JUMPS):
        index += 1  # the current instruction returns the value (`.item()`) or converts it to bool
        while index < len(instructions) and instructions[index].opname in _PASSED:
            index += 1
    if index >= len(instructions) or not instructions[index].opname.startswith(_JUMPS):
        return None
    jump = instructions[index]
    wanted = {"TRUE": True, "FALSE": False}.get(jump.opname.rpartition("_")[2])
    if wanted is None or _is_caught(code, jump.offset):
        return None
    places = {one.offset: i for i, one in enumerate(instructions)}
    said = _PROTOCOL | (_OF_ITEMS if code.co_name.startswith("__") else frozenset())
    if _raises(instructions[index + 1 :], said):
        return wanted  # the jump skips the `raise`
    if _raises(instructions[places[jump.argval] :], said):
        return not wanted
    return None


def _raises(instructions: list[dis.Instruction], said: frozenset[str]) -> bool:
    """Returns True if straight-line code raises an exception, except those that mean "missing"."""
    for one in instructions[:_LONGEST]:
        if one.opname == "RAISE_VARARGS":
            return True
        if one.opname == "LOAD_GLOBAL" and one.argval in said:
            return False
        if one.opname not in _STRAIGHT:
            return False
    return False


def _is_caught(code: CodeType, offset: int) -> bool:
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    return any(entry.start <= offset < entry.end for entry in entries)


def _is_caught_by_a_caller(frame: FrameType | None) -> bool:
    """Returns True if the user's code made this call inside a `try` with an `except`."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_CALQUE):
            return False  # callers of the traced function do not count
        if not is_library(code.co_filename) and _has_except(code, frame.f_lasti):
            return True
        frame = frame.f_back
    return False


@lru_cache(maxsize=1024)
def _has_except(code: CodeType, offset: int) -> bool:
    """Returns True if an `except` of a code object catches exceptions raised at an instruction."""
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    targets = [entry.target for entry in entries if entry.start <= offset < entry.end]
    if not targets:
        return False
    instructions = list(dis.get_instructions(code))
    places = {one.offset: i for i, one in enumerate(instructions)}
    return any(_catches(instructions[places[target] :]) for target in targets)


def _catches(handler: list[dis.Instruction]) -> bool:
    for one in handler[:_LONGEST]:
        if one.opname in ("RERAISE", "WITH_EXCEPT_START"):
            return False  # `finally`, or `with`
        if one.opname in ("CHECK_EXC_MATCH", "CHECK_EG_MATCH", "POP_EXCEPT"):
            return True
    return False
