"""Finds out whether a program reads text, or only displays it.

This follows the bytecode of the function that creates the text, of its callers and of functions
that it is passed to. The text counts as read if it, or a value computed from it, is compared or
decides a branch, or if a computed value is returned or stored. The text itself may be stored in
variables and containers, printed and raised. Uses that cannot be followed count as display.
"""

import dataclasses
import logging
import reprlib
import warnings
from bisect import bisect_right
from collections import deque
from enum import Enum, auto
from types import CodeType, FrameType, FunctionType
from typing import Any

from calque.errors.bytecode import LOCALS, Instruction, effect, instructions_of, is_branch
from calque.errors.bytecode_uses import Use, parameter
from calque.errors.frames import is_library

_TEXTUAL = frozenset(
    (
        *("BINARY_OP", "BUILD_STRING", "CONVERT_VALUE"),
        *("FORMAT_SIMPLE", "FORMAT_VALUE", "FORMAT_WITH_SPEC", "TO_BOOL"),
    )
)
_ASKING = frozenset(
    (
        *("BINARY_SLICE", "BINARY_SUBSCR", "COMPARE_OP", "CONTAINS_OP"),
        *("UNARY_INVERT", "UNARY_NEGATIVE", "UNARY_POSITIVE"),
    )
)
_SUBSCRIPTS = ("BINARY_OP", "BINARY_SUBSCR")
_KEEPING = frozenset(("STORE_ATTR", "STORE_DEREF", "STORE_GLOBAL", "STORE_SUBSCR"))
_FORMS = frozenset(
    (
        *("capitalize", "casefold", "center", "expandtabs", "format", "join", "ljust", "lower"),
        *("lstrip", "removeprefix", "removesuffix", "replace", "rjust", "rstrip", "strip"),
        *("title", "translate", "upper", "zfill"),
    )
)
"""String methods that return text."""
_BLIND = (callable, id, isinstance, type)
"""Functions of an object whose result does not depend on the content of text."""
_WRITERS = (str, repr, ascii, format, print)
_ASKING_TYPE = (callable, isinstance, type)
"""Functions that only depend on the type of a value."""
_AROUND = frozenset((dataclasses.__file__, reprlib.__file__))
"""The files of functions that `repr` may call before the `__repr__` of a class."""
_TELLING = frozenset((logging.__file__, warnings.__file__))
"""The files of functions that only write text."""
_DEEPEST = 8


class FollowedValue(Enum):
    """A followed value."""

    TEXT = auto()
    TEXTS = auto()
    """A list or tuple that contains text."""
    LINES = auto()
    """The lines of text; their number depends on the text."""
    COMPUTED = auto()
    """A value computed from text."""


class UseEnd(Enum):
    """What happened to a followed value."""

    READ = auto()
    RETURNED = auto()
    SHOWN = auto()


def is_read(frame: FrameType) -> bool:
    """Returns True if the program reads the text that a frame is creating now.

    Args:
        frame: a frame of the program, at the instruction that creates the text.
    """
    return _Following().up(frame, FollowedValue.TEXT) is UseEnd.READ


class _Following:
    def __init__(self) -> None:
        self._visited: set[tuple[CodeType, str, FollowedValue]] = set()
        self._depth = 0

    def up(self, frame: FrameType | None, value: FollowedValue) -> UseEnd:
        """Follow the result of a frame's current instruction."""
        if frame is None or is_library(frame.f_code.co_filename):
            return UseEnd.SHOWN
        now = bisect_right(instructions_of(frame.f_code), frame.f_lasti, key=lambda one: one.offset)
        end, value = self._on_stack(frame.f_code, now, value, frame.f_globals, frame)
        if end is not UseEnd.RETURNED:
            return end
        caller = frame.f_back
        while caller is not None and caller.f_code.co_filename in _AROUND:
            caller = caller.f_back  # the wrapper of a data class's `__repr__`
        if caller is None or is_library(caller.f_code.co_filename):  # a library displays the text
            return UseEnd.READ if value is FollowedValue.COMPUTED else UseEnd.SHOWN
        return self.up(caller, value)

    def _on_stack(
        self,
        code: CodeType,
        at: int,
        value: FollowedValue,
        known: dict[str, Any],
        frame: FrameType | None,
        depth: int = 0,
    ) -> tuple[UseEnd, FollowedValue]:
        """Follow the value on the stack before an instruction, below `depth` other values."""
        instructions = instructions_of(code)
        while at < len(instructions):
            one = instructions[at]
            if one.opname == "FOR_ITER" and value is FollowedValue.LINES and depth == 0:
                value, at = FollowedValue.TEXT, at + 1
                continue
            found = effect(one)
            if found is None:
                break
            taken, put = found
            if one.opname == "COPY" and one.arg == depth + 1:
                end, left = self._on_stack(code, at + 1, value, known, frame)
                if end is not UseEnd.SHOWN:
                    return end, left
            if taken <= depth:
                depth += put - taken
            else:
                use = Use(code, instructions, at, depth, known, frame)
                step = self._used(use, value)
                if isinstance(step, UseEnd):
                    return step, value
                value, depth = step, put - 1
            at += 1
        return UseEnd.SHOWN, value

    def _used(self, use: Use, value: FollowedValue) -> UseEnd | FollowedValue:
        """Returns what happens to a value that an instruction uses."""
        one, name = use.instruction, use.instruction.opname
        if is_branch(one):
            return UseEnd.READ if value is FollowedValue.COMPUTED else UseEnd.SHOWN
        if name in ("CALL", "CALL_KW"):
            return self._called(use, value)
        if name in ("LOAD_ATTR", "LOAD_METHOD"):
            if one.argval == "splitlines" and value is FollowedValue.TEXT:
                return FollowedValue.LINES
            return value if one.argval in _FORMS else FollowedValue.COMPUTED
        if name in ("STORE_FAST", "STORE_FAST_LOAD_FAST"):
            local = one.argval if isinstance(one.argval, str) else one.argval[0]
            return self.local(use.code, local, value, use.known, use.frame)
        if name in _KEEPING:
            is_key = name == "STORE_SUBSCR" and use.depth == 0
            return UseEnd.READ if is_key or value is FollowedValue.COMPUTED else UseEnd.SHOWN
        if name == "RETURN_VALUE" or (name == "YIELD_VALUE" and use.code.co_name == "<genexpr>"):
            return UseEnd.RETURNED
        if name == "GET_ITER":
            ends = {FollowedValue.TEXTS: UseEnd.SHOWN, FollowedValue.LINES: value}
            return ends.get(value, UseEnd.READ)
        if name in _ASKING or (name == "BINARY_OP" and one.argrepr == "[]"):
            is_item = value in (FollowedValue.TEXTS, FollowedValue.LINES) and name in _SUBSCRIPTS
            return FollowedValue.TEXT if is_item else FollowedValue.COMPUTED
        if name in ("BUILD_LIST", "BUILD_TUPLE"):
            return FollowedValue.TEXTS if value is FollowedValue.TEXT else value
        if name in ("IS_OP", "UNARY_NOT"):
            return value if value is FollowedValue.COMPUTED else UseEnd.SHOWN
        return value if name in _TEXTUAL else UseEnd.SHOWN

    def _called(self, use: Use, value: FollowedValue) -> UseEnd | FollowedValue:
        """Returns what happens to an argument of a call."""
        place = use.argument()
        if place is None:  # it calls a method of the value
            return value
        called, discarded = use.callee(), use.is_discarded()
        if called in _ASKING_TYPE or (called is len and value is FollowedValue.TEXTS):
            return UseEnd.SHOWN
        if _is_one_of(called, _BLIND):
            return UseEnd.SHOWN
        if _is_one_of(called, _WRITERS) or (isinstance(called, str) and called in _FORMS):
            return (
                FollowedValue.TEXT if value in (FollowedValue.TEXTS, FollowedValue.LINES) else value
            )
        if isinstance(called, type) and issubclass(called, BaseException):
            return value
        if getattr(called, "__objclass__", None) in (deque, list):
            return UseEnd.SHOWN
        function = getattr(called, "__func__", called)
        if isinstance(function, FunctionType) and function.__code__.co_filename in _TELLING:
            return UseEnd.SHOWN
        if isinstance(function, FunctionType) and not is_library(function.__code__.co_filename):
            name = parameter(called, place)
            if name is None:
                return UseEnd.SHOWN
            end = self.local(function.__code__, name, value, function.__globals__, None)
            if end is not UseEnd.RETURNED:
                return end
            return UseEnd.SHOWN if discarded else value
        return UseEnd.SHOWN if discarded else FollowedValue.COMPUTED

    def local(
        self,
        code: CodeType,
        name: str,
        value: FollowedValue,
        known: dict[str, Any],
        frame: FrameType | None,
    ) -> UseEnd:
        """Returns what happens to a variable of a function."""
        if (code, name, value) in self._visited or self._depth > _DEEPEST:
            return UseEnd.SHOWN
        self._visited.add((code, name, value))
        self._depth += 1
        ends = set[UseEnd]()
        for at, one in enumerate(instructions_of(code)):
            for depth in _depths(one, name):
                end, left = self._on_stack(code, at + 1, value, known, frame, depth)
                changed = end is UseEnd.RETURNED and left is not value
                ends.add(UseEnd.READ if changed else end)
        self._depth -= 1
        return next((end for end in (UseEnd.READ, UseEnd.RETURNED) if end in ends), UseEnd.SHOWN)


def _is_one_of(called: object, functions: tuple[Any, ...]) -> bool:
    return any(called is one for one in functions)


def _depths(one: Instruction, name: str) -> list[int]:
    """Returns the stack depths at which an instruction pushes a variable."""
    if one.opname in LOCALS:
        return [0] if one.argval == name else []
    if one.opname == "STORE_FAST_LOAD_FAST":
        return [0] if one.argval[1] == name else []
    if one.opname != "LOAD_FAST_LOAD_FAST":
        return []
    return [1 - place for place, loaded in enumerate(one.argval) if loaded == name]
