"""Which names a piece of code uses: read off its bytecode, once for each code object."""

import dis
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

_GLOBALS = frozenset(
    dis.opmap[name]
    for name in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
    if name in dis.opmap
)
_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_EXTENDED = dis.opmap["EXTENDED_ARG"]
_CALL = "PRECALL" if "PRECALL" in dis.opmap else "CALL"
_BY_NAME = frozenset(("getattr", "setattr", "hasattr", "delattr"))
_WHOLE_WORDS = frozenset(("__dict__", "__getattribute__", "__getstate__", "__reduce_ex__"))
_WHOLE_GLOBALS = frozenset(
    (
        *("vars", "dir", "globals", "locals", "eval", "exec"),
        *("asdict", "astuple", "fields", "attrgetter", "methodcaller", "getmembers", "deepcopy"),
        *("copy", "dataclasses", "operator", "inspect", "pickle"),
    )
)


class Names(NamedTuple):
    """The names in a code object.

    Attributes:
        globals: the global and builtin variables that it names.
        words: names of attributes, and strings that could be such names.
        whole: whether it may look at attributes whose names it does not contain.
        nested: the code objects that it makes functions of.
    """

    globals: frozenset[str]
    words: frozenset[str]
    whole: bool
    nested: tuple[CodeType, ...]


@lru_cache(maxsize=16384)
def names_of(code: CodeType) -> Names:
    """The names that a code object uses (not those of functions inside of it).

    >>> names_of((lambda x: x.size + scale).__code__).globals
    frozenset({'scale'})
    """
    used = frozenset(_globals(code))
    words = set(code.co_names)
    nested = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            nested.append(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            words.add(constant)
        elif isinstance(constant, tuple | frozenset):
            words.update(c for c in constant if isinstance(c, str) and c.isidentifier())
    whole = (
        not _WHOLE_WORDS.isdisjoint(words)
        or not _WHOLE_GLOBALS.isdisjoint(used)
        or (not _BY_NAME.isdisjoint(used) and _computes_names(code))
    )
    return Names(used, frozenset(words), whole, tuple(nested))


def _globals(code: CodeType) -> set[str]:
    found, names, extended = set(), code.co_names, 0
    raw = code.co_code
    for index in range(0, len(raw), 2):
        operation, argument = raw[index], raw[index + 1] | extended
        extended = argument << 8 if operation == _EXTENDED else 0
        if operation in _GLOBALS:
            found.add(names[argument >> 1 if operation == _LOAD_GLOBAL else argument])
    return found


def _computes_names(code: CodeType) -> bool:
    """Whether a `getattr` or the like is given something else than a constant for the name."""
    instructions = list(dis.get_instructions(code))
    for start, one in enumerate(instructions):
        if one.opname == "LOAD_GLOBAL" and one.argval in _BY_NAME:
            if not _names_a_constant(instructions[start + 1 :]):
                return True
    return False


def _names_a_constant(instructions: list[dis.Instruction]) -> bool:
    """Whether the second argument of a call, whose function has been loaded, is a constant."""
    depth, second = 0, None
    for one in instructions:
        if one.opname == _CALL and one.arg == depth:
            break
        if one.opname.startswith(("POP_JUMP", "JUMP", "FOR_ITER", "RETURN", "CALL_FUNCTION_EX")):
            return False
        before = depth
        depth += dis.stack_effect(one.opcode, one.arg if one.opcode >= dis.HAVE_ARGUMENT else None)
        if before == 1 and depth >= 2:
            second = one
    return second is not None and second.opname == "LOAD_CONST" and isinstance(second.argval, str)
