"""What the instruction that is running asks a value for."""

import dis
import functools
import itertools
from bisect import bisect_left
from types import CodeType, FrameType
from typing import Any

from calque.tracing.core.origins import is_engine


@functools.lru_cache(maxsize=256)
def _instructions(code: CodeType) -> tuple[list[int], list[dis.Instruction]]:
    instructions = list(dis.get_instructions(code))
    return [step.offset for step in instructions], instructions


def _running(frame: FrameType) -> tuple[int, list[dis.Instruction]]:
    offsets, instructions = _instructions(frame.f_code)
    return bisect_left(offsets, frame.f_lasti), instructions


def unpacked_length(frame: FrameType) -> int | None:
    """How many values `a, b = value` asks for; None when the frame does something else."""
    at, instructions = _running(frame)
    step = instructions[at]
    return step.argval if step.opname == "UNPACK_SEQUENCE" else None


@functools.lru_cache(maxsize=256)
def _handled(code: CodeType) -> list[tuple[int, int]]:
    """The instructions whose exceptions the code handles, as ranges of offsets."""
    entries: Any = dis.Bytecode(code).exception_entries  # pyright: ignore[reportAttributeAccessIssue]
    return [(entry.start, entry.end) for entry in entries]


def is_handled(frame: FrameType | None, root: str) -> bool:
    """Whether an exception that is raised here may be caught, before it is at the `root` file's."""
    while frame is not None and frame.f_code.co_filename != root:
        if not is_engine(frame.f_code.co_filename):
            if any(start <= frame.f_lasti < end for start, end in _handled(frame.f_code)):
                return True
        frame = frame.f_back
    return False


def is_assertion(frame: FrameType, *, bare: bool = False) -> bool:
    """Whether the truth that is asked for is the condition of an `assert` statement.

    Args:
        bare: only of one that has no message.
    """
    at, instructions = _running(frame)
    # Python 3.13 asks before it jumps: by itself, or in the comparison that comes before.
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
    """Whether code asks with `is`, or `id`, whether two values are one; no constants, nor globals.

    >>> asks_identity((lambda x, y: x is y).__code__), asks_identity((lambda x: x is len).__code__)
    (True, False)
    """
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    asked = (a for a, b in itertools.pairwise(steps) if b.opname == "IS_OP")
    return "id" in code.co_names or any(step.opname not in _OF_NO_TENSOR for step in asked)


@functools.lru_cache(maxsize=4096)
def asks_class(code: CodeType) -> bool:
    """Whether code may ask of what class a tensor is.

    >>> asks_class((lambda x: type(x) is int).__code__), asks_class((lambda x: x + 1).__code__)
    (True, False)
    """
    return not _CLASSES.isdisjoint(code.co_names)
