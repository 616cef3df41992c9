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
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., object])

SETTLING: dict[int, CodeType] = {}
"""The code of functions that are one step, by id, because hashing a code object reads all of it."""


def settles(function: _Function) -> _Function:
    """Mark a function as one step: no signal handler runs before it returns.

    A handler waits while a call of the function is anywhere on the main thread's stack, however
    long this takes and however often the signal is sent. So the function must not call user code.
    Calls cost nothing extra. Only handlers wait: an exception that another thread sets
    (`PyThreadState_SetAsyncExc`) is still raised at the next instruction.

    Args:
        function: a Python function; decorators below this one are not unwrapped. For the generator
            function of a context manager, entering and leaving the context are the steps.
    """
    code = function.__code__  # type: ignore[attr-defined]
    SETTLING[id(code)] = code
    return function


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
