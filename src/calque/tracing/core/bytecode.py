"""Reads from bytecode what the running instruction needs from a value."""

import dis
import functools
import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from calque.state.names import words_in
from calque.tracing.core.origins import is_engine


@functools.lru_cache(maxsize=256)
def _instructions(code: CodeType) -> tuple[list[int], list[dis.Instruction]]:
    instructions = list(dis.get_instructions(code))
    return [step.offset for step in instructions], instructions


def _running(frame: FrameType) -> tuple[int, list[dis.Instruction]]:
    offsets, instructions = _instructions(frame.f_code)
    return bisect_right(offsets, frame.f_lasti) - 1, instructions  # it may be in an inline cache


def unpacked_length(frame: FrameType) -> int | None:
    """Returns how many values `a, b = value` unpacks; None if the frame does something else."""
    at, instructions = _running(frame)
    step = instructions[at]
    return step.argval if step.opname == "UNPACK_SEQUENCE" else None


@functools.lru_cache(maxsize=256)
def _handled(code: CodeType) -> list[tuple[int, int]]:
    """Returns the instructions whose exceptions the code handles, as ranges of offsets."""
    entries: Any = dis.Bytecode(code).exception_entries  # pyright: ignore[reportAttributeAccessIssue]
    return [(entry.start, entry.end) for entry in entries]


def is_handled(frame: FrameType | None, root: str) -> bool:
    """Returns True if an exception raised here may be caught before it reaches the `root` file."""
    while frame is not None and frame.f_code.co_filename != root:
        if not is_engine(frame.f_code.co_filename):
            if any(start <= frame.f_lasti < end for start, end in _handled(frame.f_code)):
                return True
        frame = frame.f_back
    return False


def is_assertion(frame: FrameType, *, bare: bool = False) -> bool:
    """Returns True if the running instruction tests the condition of an `assert` statement.

    Args:
        bare: count only assertions without a message.
    """
    at, instructions = _running(frame)
    # Python 3.13 converts to bool before the jump, in an instruction of its own or in the
    # comparison.
    if instructions[at].opname in ("TO_BOOL", "COMPARE_OP"):
        at += 1
    jump = instructions[at].opname
    if not (jump.startswith("POP_JUMP") and jump.endswith("IF_TRUE")):
        return False
    if instructions[at + 1].opname != "LOAD_ASSERTION_ERROR":
        return False
    return not bare or instructions[at + 2].opname == "RAISE_VARARGS"


_OF_NO_TENSOR = ("LOAD_CONST", "LOAD_GLOBAL", "LOAD_COMMON_CONSTANT")
_CLASSES = frozenset(("Parameter", "Buffer", "type", "__class__", "issubclass"))


@functools.lru_cache(maxsize=4096)
def asks_identity(code: CodeType) -> bool:
    """Returns True if code compares two values by identity (`is`, `id`), other than with constants
    and globals.

    >>> asks_identity((lambda x, y: x is y).__code__), asks_identity((lambda x: x is len).__code__)
    (True, False)
    """
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    asked = (a for a, b in itertools.pairwise(steps) if b.opname == "IS_OP")
    return "id" in code.co_names or any(step.opname not in _OF_NO_TENSOR for step in asked)


@functools.lru_cache(maxsize=4096)
def asks_none(code: CodeType) -> bool:
    """Returns True if code compares a value with None by `is`, or is that of a graph whose program
    does.

    >>> asks_none((lambda x: x is None).__code__), asks_none((lambda x: x == 0).__code__)
    (True, False)
    """
    _, steps = _instructions(code)
    checked = any(name.endswith("_expect_leaf") for name in code.co_names)
    return checked or any(_tests_none(steps, at) for at in range(len(steps)))


def _tests_none(steps: list[dis.Instruction], at: int) -> bool:
    """Returns True if the instruction there compares the last value with None, or by `is` with
    something that may be None.
    """
    if at + 1 >= len(steps):
        return False
    step, after = steps[at], steps[at + 1].opname
    if step.opname.endswith(("_IF_NONE", "_IF_NOT_NONE")):
        return True
    if step.opname.startswith("LOAD_CONST"):
        return step.argval is None and after in ("IS_OP", "CONTAINS_OP")
    return step.opname.startswith("LOAD") and after == "IS_OP"


def may_test_none(frame: FrameType, part: int = 0) -> bool:
    """Returns True if the frame compares the result of the running instruction with None.

    Args:
        part: which part of the result, if the instruction takes it apart.
    """
    at, steps = _running(frame)
    names = _stored(steps, at, part)
    if names is None:
        return _tests_none(steps, at + 1)
    loads = (i for i, step in enumerate(steps) if step.opname.startswith("LOAD"))
    return any(_last(steps[i]) in names and _tests_none(steps, i + 1) for i in loads)


def is_discarded(frame: FrameType) -> bool:
    """Returns True if the frame drops the result of the running call, or the program returns it."""
    at, steps = _running(frame)
    step = steps[at + 1].opname
    above = frame.f_back
    is_last = above is None or is_engine(above.f_code.co_filename)
    return step == "POP_TOP" or (step == "RETURN_VALUE" and is_last)


def _stored(steps: list[dis.Instruction], at: int, part: int) -> tuple[str, ...] | None:
    """Returns the variables that the result of an instruction is assigned to; None if it is not."""
    is_apart = steps[at].opname == "UNPACK_SEQUENCE"
    names: list[str] = []
    for step in steps[at + 1 :]:
        if not step.opname.startswith("STORE_") or step.opname in ("STORE_SUBSCR", "STORE_SLICE"):
            break
        given = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        names += given[: 1 if "_LOAD" in step.opname else None]
    if not names:
        return None
    return (names[part],) if is_apart and part < len(names) else tuple(names)


def _last(step: dis.Instruction) -> Any:
    return step.argval[-1] if isinstance(step.argval, tuple) else step.argval


@functools.lru_cache(maxsize=4096)
def asks_class(code: CodeType) -> bool:
    """Returns True if code may check the class of a tensor.

    >>> asks_class((lambda x: type(x) is int).__code__), asks_class((lambda x: x + 1).__code__)
    (True, False)
    """
    return not _CLASSES.isdisjoint(code.co_names)


@functools.lru_cache(maxsize=4096)
def assigns(code: CodeType, name: str) -> bool:
    """Returns True if code assigns an attribute of this name."""
    steps = dis.get_instructions(code) if name in code.co_names else ()
    return any(step.opname == "STORE_ATTR" and step.argval == name for step in steps)


@functools.lru_cache(maxsize=4096)
def may_find(code: CodeType, name: str) -> bool:
    """Returns True if code may read an attribute, such as one that is None, before it has assigned
    it.

    >>> def keeps(self, x):
    ...     self.last = x
    ...     return self.last
    >>> def fills(self, x):
    ...     if self.last is None:
    ...         self.last = x
    ...     return self.last
    >>> may_find(keeps.__code__, "last"), may_find(fills.__code__, "last")
    (False, True)
    """
    if _says(code, name):
        return True
    read = list(_reads(code, name))
    assigned = _assigned_at(code, name) if read else 0
    return any(offset < assigned for offset in read)


@functools.lru_cache(maxsize=4096)
def may_miss(code: CodeType, name: str) -> bool:
    """Returns True if code may find that the attribute is missing, and continue.

    >>> def reads(self, x):
    ...     return x + self.last
    >>> def asks(self, x):
    ...     return x if hasattr(self, "last") else x + self.last
    >>> may_miss(reads.__code__, "last"), may_miss(asks.__code__, "last")
    (False, True)
    """
    handled = _handled(code) if name in code.co_names else ()
    caught = (start <= at < end for start, end in handled for at in _reads(code, name))
    return _says(code, name) or any(caught)


def catches(code: CodeType) -> bool:
    """Returns True if code names the exception for a missing attribute, as a handler does.

    >>> catches((lambda: 1).__code__)
    False
    """
    return not _CATCHING.isdisjoint(code.co_names)


_CATCHING = frozenset(("AttributeError", "Exception", "BaseException"))


def _says(code: CodeType, name: str) -> bool:
    return any(name in words_in(constant) for constant in code.co_consts if type(constant) is str)


def _reads(code: CodeType, name: str) -> Iterator[int]:
    steps = dis.get_instructions(code) if name in code.co_names else ()
    yield from (s.offset for s in steps if s.argval == name and s.opname != "STORE_ATTR")


def _assigned_at(code: CodeType, name: str) -> float:
    """Returns the offset from which code has assigned an attribute on every path."""
    steps = list(dis.get_instructions(code))
    jumps = {*dis.hasjrel, *dis.hasjabs}
    spans = [(step.offset, step.argval) for step in steps if step.opcode in jumps]
    for step in steps:
        if step.opname == "STORE_ATTR" and step.argval == name:
            skipped = any(start < step.offset < end for start, end in spans)
            caught = any(start <= step.offset < end for start, end in _handled(code))
            if not (skipped or caught):
                return step.offset
    return math.inf
