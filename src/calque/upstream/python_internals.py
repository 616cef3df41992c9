"""What calque knows of CPython's bytecode, of its imports, and of its trace functions."""

import dis
import functools
import importlib
import time
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=FunctionType)
_AFTER_AWAIT = 3  # the argument of RESUME that checks for no signals
_SHORTLY = 0.0002  # seconds
_TRIES = 5000  # a thread that waits for itself, in a destructor, waits in vain

_IMPORT: CodeType = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined]
_IMPORT_FILES = ("<frozen importlib", importlib.__file__)

UNSEEN_NAMES: set[str] = set()
"""The names of the functions of `entered_unseen`."""

UNSEEN_FILES: set[str] = set()
"""Their files."""


def entered_unseen(function: _Function) -> _Function:
    """Make a function start without checks for signals or exceptions of other threads.

    The first instruction of a function checks for them, before any `try`, but not that of a
    coroutine after an `await`. Loops and calls in the function still check, and so does a trace
    function (`sys.settrace`), which is called on entry.
    """
    function.__code__ = _unseen(function.__code__)
    return function


@functools.lru_cache
def _unseen(code: CodeType) -> CodeType:
    UNSEEN_NAMES.add(code.co_name)
    UNSEEN_FILES.add(code.co_filename)
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RESUME":
            written = bytearray(code.co_code)
            written[instruction.offset + 1] = _AFTER_AWAIT
            return code.replace(co_code=bytes(written))
    return code


def set_hook(setter: Callable[[Any], object], function: Any) -> None:
    """Set a trace or profile function, waiting while another thread is setting one.

    Args:
        setter: `sys.settrace` or `sys.setprofile`. Python 3.11 lets one thread at a time in.
        function: the function, or None.
    """
    for _ in range(_TRIES):
        try:
            setter(function)
            return
        except RuntimeError as error:
            if "being installed" not in str(error):
                raise
        time.sleep(_SHORTLY)
    setter(function)


def is_calling(frame: FrameType, name: str) -> bool:
    """Returns True if a frame is at a call, without arguments, of this name."""
    if name not in frame.f_code.co_names:
        return False
    loaded = None
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset >= frame.f_lasti:
            break
        if instruction.opname not in ("CACHE", "PRECALL", "PUSH_NULL"):
            loaded = instruction.argval
    return bool(loaded == name)


def importer(frame: FrameType) -> FrameType | None:
    """Returns the frame that imports a module, if this one finds and runs it."""
    if frame.f_code is not _IMPORT:
        return None
    by = frame.f_back
    while by is not None and by.f_code.co_filename.startswith(_IMPORT_FILES):
        by = by.f_back
    return by


def exception_table(code: CodeType) -> list[tuple[int, int, int]] | None:
    """Returns the ranges of instructions that handlers protect: the first offset, the end, and the
    offset of the handler; None if this release of Python does not tell.
    """
    parse: Any = getattr(dis, "_parse_exception_table", None)
    if parse is None:
        return None
    return [(entry.start, entry.end, entry.target) for entry in parse(code)]
