"""The effects of instructions on Python's stack, for straight-line code."""

import dis
import sys
from collections.abc import Callable
from functools import lru_cache
from types import CodeType

Instruction = dis.Instruction
_OLD = sys.version_info < (3, 12)
LOCALS: frozenset[str] = frozenset(("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"))
"""The instructions that load one local variable."""
_METHOD = 0 if _OLD else 1
"""The lowest bit of LOAD_ATTR's argument, which is set for methods from Python 3.12 on."""

_NOTHING = ("CACHE", "COPY_FREE_VARS", "EXTENDED_ARG", "KW_NAMES", "MAKE_CELL", "NOP")
_LOADS = (
    *("LOAD_CLOSURE", "LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_FAST_AND_CLEAR"),
    *("LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_NAME", "LOAD_SMALL_INT", "PUSH_NULL"),
)
_UNARY = (
    *("CONVERT_VALUE", "FORMAT_SIMPLE", "GET_ITER", "TO_BOOL"),
    *("UNARY_INVERT", "UNARY_NEGATIVE", "UNARY_NOT", "UNARY_POSITIVE"),
)
_BINARY = ("BINARY_OP", "BINARY_SUBSCR", "COMPARE_OP", "CONTAINS_OP", "FORMAT_WITH_SPEC", "IS_OP")
_TAKEN = (
    *("LIST_APPEND", "LIST_EXTEND", "POP_TOP", "RETURN_VALUE", "STORE_DEREF", "STORE_FAST"),
    *("STORE_GLOBAL", "STORE_NAME", "YIELD_VALUE"),
)
_EFFECTS: dict[str, Callable[[int], tuple[int, int]]] = {
    **dict.fromkeys((*_NOTHING, "NOT_TAKEN", "PRECALL", "RESUME"), lambda n: (0, 0)),
    **dict.fromkeys(_LOADS, lambda n: (0, 1)),
    **dict.fromkeys(_UNARY, lambda n: (1, 1)),
    **dict.fromkeys(_BINARY, lambda n: (2, 1)),
    **dict.fromkeys(_TAKEN, lambda n: (1, 0)),
    **dict.fromkeys(("BUILD_LIST", "BUILD_SET", "BUILD_STRING", "BUILD_TUPLE"), lambda n: (n, 1)),
    "BINARY_SLICE": lambda n: (3, 1),
    "BUILD_CONST_KEY_MAP": lambda n: (n + 1, 1),
    "BUILD_MAP": lambda n: (2 * n, 1),
    "BUILD_SLICE": lambda n: (n, 1),
    "CALL": lambda n: (n + 2, 1),
    "CALL_KW": lambda n: (n + 3, 1),
    "COPY": lambda n: (0, 1),
    "FORMAT_VALUE": lambda n: (2 if n & 4 else 1, 1),
    "LOAD_ATTR": lambda n: (1, 1 + (n & _METHOD)),
    "LOAD_FAST_LOAD_FAST": lambda n: (0, 2),
    "LOAD_GLOBAL": lambda n: (0, 1 + (n & 1)),
    "LOAD_METHOD": lambda n: (1, 2),
    "RAISE_VARARGS": lambda n: (n, 0),
    "STORE_ATTR": lambda n: (2, 0),
    "STORE_FAST_LOAD_FAST": lambda n: (1, 1),
    "STORE_SUBSCR": lambda n: (3, 0),
}


@lru_cache(maxsize=256)
def instructions_of(code: CodeType) -> list[Instruction]:
    """Returns the instructions of a code object."""
    return list(dis.get_instructions(code))


def is_branch(one: Instruction) -> bool:
    """Returns True for a conditional jump."""
    return one.opname.startswith(("POP_JUMP_", "JUMP_IF_"))


def effect(one: Instruction) -> tuple[int, int] | None:
    """Returns how many values an instruction pops from the stack, and how many it pushes.

    None if that is not known.
    """
    if is_branch(one):
        return 1, 0
    found = _EFFECTS.get(one.opname)
    return None if found is None else found(one.arg or 0)


def producer(instructions: list[Instruction], index: int, depth: int) -> int | None:
    """Returns the instruction that pushed the value at a depth of the stack (0 is the top).

    None if there are jumps in between.
    """
    wanted = depth + 1
    for at in range(index - 1, -1, -1):
        found = None if is_branch(instructions[at]) else effect(instructions[at])
        if found is None:
            return None
        taken, put = found
        if put >= wanted:
            return at
        wanted += taken - put
    return None
