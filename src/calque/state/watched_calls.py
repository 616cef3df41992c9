"""Which functions of calque are watched while the code of a program is (`running`).

A trace function slows down every line of Python. So it is removed while calque's own code runs
(`unwatched`), and restored when that calls the program's code (`call_watched`).
"""

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from calque.upstream.python_internals import set_hook

MONITORS: bool = hasattr(sys, "monitoring")
"""Whether this Python can observe code without a trace function."""
_F = TypeVar("_F", bound=Callable[..., Any])


class _Active(threading.local):
    """The watchers of this thread.

    Attributes:
        running: receives the code that runs; None if nothing is watched.
        hook: the trace function, if there is one that may be removed temporarily.
    """

    def __init__(self) -> None:
        self.running: Any = None
        self.hook: Any = None


active: _Active = _Active()


def unwatched(function: _F) -> _F:
    """A decorator for calque's functions in which no code of the program runs."""
    if MONITORS:
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        hook = active.hook
        if hook is None or sys.gettrace() is not hook:
            return function(*args, **kwargs)
        try:
            sys.settrace(None)
        except RuntimeError:  # another thread is setting one
            set_hook(sys.settrace, None)
        try:
            return function(*args, **kwargs)
        finally:
            set_hook(sys.settrace, hook)

    return call  # pyright: ignore[reportReturnType]


def call_watched(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call code that may be the program's from an `unwatched` function."""
    hook = active.hook
    if hook is None or sys.gettrace() is not None:
        return function(*args, **kwargs)
    set_hook(sys.settrace, hook)
    try:
        return function(*args, **kwargs)
    finally:
        set_hook(sys.settrace, None)


def watched(function: _F) -> _F:
    """A decorator for functions of the program that calque calls."""
    if MONITORS:
        return function
    return functools.wraps(function)(functools.partial(call_watched, function))  # pyright: ignore[reportReturnType]
