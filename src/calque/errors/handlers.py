"""Signal handlers and their exceptions (such as a timeout), which do not belong to the program.

Code that tests whether a program supports something treats an exception as "no". An exception of a
signal handler says nothing about that.
"""

import functools
import inspect
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import CodeType, FrameType
from typing import Any


def run_apart(
    apart: AbstractContextManager[object],
    handler: Callable[[int, FrameType | None], Any],
    signum: int,
    frame: FrameType | None,
) -> Any:
    """Run a handler that interrupts a trace, outside of the trace.

    Args:
        apart: the context in which nothing is traced.
        handler: the user's handler.
        signum, frame: the handler's arguments.
    """
    with apart:
        return handler(signum, frame)


RUN_APART: CodeType = run_apart.__code__


def is_of_handler(error: BaseException) -> bool:
    """Returns True if an exception was raised in a current signal handler."""
    codes = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    codes.discard(None)
    trace = error.__traceback__
    while codes and trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: object) -> CodeType | None:
    """Returns the code of a function, a method or a callable object."""
    handler = getattr(handler, "handler", handler)  # unwrap calque's deferring wrapper
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    code = getattr(function, "__code__", None)
    if code is None:
        call = inspect.getattr_static(type(handler), "__call__", None)
        code = getattr(call, "__code__", None)
    return code
