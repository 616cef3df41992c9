"""Which errors code may go on after, and whether a traced number may have caused them.

Code that needs a number gets the number itself. But a C function that takes no traced number raises
an error that it would not raise for the number, and a handler of errors may hide it.
"""

import builtins
import dis
import functools
import itertools
import sys
from collections.abc import Collection
from types import CodeType, FunctionType

from calque.jitting.number_questions import names_loaded, names_stored
from calque.state.ownership import Owner, owner_of_code, owner_of_name
from calque.upstream.python_internals import exception_table

_JUMPS = ("POP_JUMP_", "JUMP_IF_")
_TRUTH = ("TO_BOOL", "UNARY_NOT")
_ALLOWED = frozenset(
    (
        *("RESUME", "NOP", "CACHE", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_FAST_LOAD_FAST"),
        *("LOAD_FAST_CHECK", "LOAD_DEREF", "LOAD_CONST", "LOAD_ATTR", "LOAD_METHOD"),
        *("IMPORT_NAME", "IMPORT_FROM", "PRECALL", "CALL", "CALL_KW", "KW_NAMES"),
        *("STORE_FAST", "STORE_FAST_STORE_FAST", "STORE_FAST_LOAD_FAST", "POP_TOP"),
        *("RETURN_VALUE", "RETURN_CONST", "JUMP_FORWARD", "IS_OP", "COPY", "SWAP"),
        *("PUSH_EXC_INFO", "CHECK_EXC_MATCH", "POP_EXCEPT", "RERAISE", *_TRUTH),
    )
)
"""Instructions that run no code, or only code whose name they load."""
_BUILTINS = {
    "iter": ("__iter__",),
    "len": ("__len__",),
    "isinstance": ("__instancecheck__", "__class__"),
    "issubclass": ("__subclasscheck__",),
    "callable": (),
}
"""Functions that treat a traced number like any other, with the methods that they call."""
_LOOKUPS = frozenset(("__getattr__", "__getattribute__"))


def hides_errors(code: CodeType, numbers: Collection[str], ran: Collection[str]) -> bool:
    """Returns True if code may go on after an error that a traced number may have caused.

    Args:
        code: the code.
        numbers: the names under which it may meet such numbers.
        ran: the names of the user's and packages' code that ran.

    >>> def parsed(text):
    ...     try:
    ...         return int(text)
    ...     except ValueError:
    ...         return None
    >>> def compiling():
    ...     try:
    ...         import torch
    ...         return torch.compiler.is_compiling()
    ...     except Exception:
    ...         return False
    >>> [hides_errors(f.__code__, ("n",), ()) for f in (parsed, compiling)]
    [True, False]
    """
    if not handles_errors(code):
        return False
    found, table = _handlers(code), exception_table(code)
    if found is None or table is None:
        return True
    steps = list(dis.get_instructions(code))
    return any(not _is_apart(_protected(table, steps, at), numbers, ran) for at in found)


@functools.lru_cache(maxsize=16384)
def handles_errors(code: CodeType) -> bool:
    """Returns True if code may go on after an error, which a traced number may have caused.

    >>> def parsed(text):
    ...     try:
    ...         return int(text)
    ...     except ValueError:
    ...         return None
    >>> def explained(text):
    ...     try:
    ...         return int(text)
    ...     except ValueError as error:
    ...         raise ValueError(f"not a number: {text}") from error
    >>> def closed(file):
    ...     try:
    ...         return file.read()
    ...     finally:
    ...         file.close()
    >>> [handles_errors(f.__code__) for f in (parsed, explained, closed)]
    [True, False, False]
    """
    return _handlers(code) != ()


@functools.lru_cache(maxsize=16384)
def _handlers(code: CodeType) -> tuple[int, ...] | None:
    """Returns the offsets of the handlers after which code may go on; None if it may hide errors in
    other ways.
    """
    if "suppress" in code.co_names or {"ExitStack", "push"}.issubset(code.co_names):
        return None
    steps = list(dis.get_instructions(code))
    if code.co_name in ("__exit__", "__aexit__") and _may_return_true(steps):
        return None
    if any(one.opname == "CHECK_EG_MATCH" for one in steps):  # `except*`
        return None
    return tuple(
        one.offset
        for place, (one, after) in enumerate(itertools.pairwise(steps))
        if one.opname == "PUSH_EXC_INFO"  # the beginning of `except` and `finally`
        and after.opname != "WITH_EXCEPT_START"
        and _may_end(steps, place + 1)
    )


def _protected(
    table: list[tuple[int, int, int]], steps: list[dis.Instruction], at: int
) -> list[dis.Instruction]:
    """Returns the instructions whose errors reach a handler, also through others inside.

    Args:
        table: the protected ranges of the code (see `exception_table`).
        steps: its instructions.
        at: the offset of the handler.
    """
    inside = {(first, end) for first, end, target in table if target == at}
    size = 0
    while len(inside) > size:
        size = len(inside)
        inside |= {
            (first, end)
            for first, end, target in table
            if target != at and any(a <= target < b for a, b in inside)
        }
    return [one for one in steps if any(first <= one.offset < end for first, end in inside)]


def _is_apart(steps: list[dis.Instruction], numbers: Collection[str], ran: Collection[str]) -> bool:
    """Returns True if instructions meet no traced number, and call nothing that may meet one."""
    if not all(one.opname in _ALLOWED or one.opname.startswith(_JUMPS) for one in steps):
        return False
    asks = any(one.opname.startswith((*_JUMPS, *_TRUTH)) for one in steps)
    if asks and not {"__bool__", "__len__"}.isdisjoint(ran):
        return False
    if any(
        one.opname == "IMPORT_NAME" and owner_of_name(one.argval) >= Owner.PACKAGE for one in steps
    ):
        return False
    return _calls_nothing_of_others(steps, {*numbers, *ran})


def _calls_nothing_of_others(steps: list[dis.Instruction], others: set[str]) -> bool:
    """Returns True if instructions call only builtin functions that are known, and functions of
    modules of Python or the engine that they import, with no arguments but constants.

    Args:
        steps: the instructions.
        others: the names of numbers, and of code that may meet them.
    """
    modules = _imported(steps)
    of_module, in_module, passes = False, False, False
    for one in steps:
        names, calls = set(names_loaded(one)), bool((one.arg or 0) & 1)
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            is_called = one.opname == "LOAD_METHOD" or (calls and sys.version_info >= (3, 12))
            in_module |= is_called
            if not of_module and (is_called or not others.isdisjoint(names | _LOOKUPS)):
                return False
        elif one.opname == "LOAD_GLOBAL" and calls:
            name = one.argval
            if name not in _BUILTINS or not others.isdisjoint((name, *_BUILTINS[name])):
                return False
        elif one.opname.startswith("LOAD_") and one.opname != "LOAD_CONST":
            of_module = one.argval in modules
            passes |= not of_module
            if not of_module and not others.isdisjoint(names):
                return False
        elif one.opname.startswith("STORE_") and not others.isdisjoint(names):
            return False
    return not (in_module and passes)


def is_shadowed(name: object, value: object) -> bool:
    """Returns True if a variable has the name of a builtin function that is known, but holds
    another one.
    """
    if not (isinstance(name, str) and name in _BUILTINS and callable(value)):
        return False
    if isinstance(value, FunctionType) and owner_of_code(value.__code__) < Owner.PACKAGE:
        return False  # calque's own, which stands for the builtin function
    return value is not vars(builtins)[name]


def _imported(steps: list[dis.Instruction]) -> set[str]:
    """Returns the variables that hold nothing but modules that the instructions import."""
    imports, found, others = False, set[str](), set[str]()
    for one in steps:
        imports |= one.opname == "IMPORT_NAME"
        if one.opname.startswith("STORE_"):
            (found if imports else others).update(names_stored(one))
            imports = False
    return found - others


def _may_return_true(steps: list[dis.Instruction]) -> bool:
    """Returns True if code may return something else than None or False, by which the end of a
    `with` statement swallows an error.
    """
    return any(
        (one.argval if one.opname == "RETURN_CONST" else _constant_of(before)) not in (None, False)
        for before, one in itertools.pairwise(steps)
        if one.opname.startswith(("RETURN_V", "RETURN_C"))
    )


def _constant_of(step: dis.Instruction) -> object:
    return step.argval if step.opname == "LOAD_CONST" else ...


def _may_end(steps: list[dis.Instruction], start: int) -> bool:
    """Returns True if code that runs from an instruction on may return, yield or go back, instead
    of raising an error.
    """
    places = {one.offset: place for place, one in enumerate(steps)}
    ahead, seen = [start], set[int]()
    while ahead:
        place = ahead.pop()
        if place in seen:
            continue
        seen.add(place)
        one = steps[place]
        if one.opname.startswith(("RETURN_V", "RETURN_C", "YIELD", "JUMP_BACK")):
            return True
        if one.opname in ("RAISE_VARARGS", "RERAISE"):
            continue
        if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
            ahead.append(places[one.argval])
        if one.opname not in ("JUMP_FORWARD", "JUMP"):
            ahead.append(place + 1)
    return False
