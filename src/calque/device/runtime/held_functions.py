"""Functions that `noexcept` C++ code calls: whether it is using one, and exceptions set meanwhile.

C++ also uses them while it unwinds from an error in Python, which is still set. CPython treats a
call that returns with an exception set as failed, and that would end the process. So the function
clears the exception, and so does a handler of a signal that arrives just before the call; what
called the C++ code raises it again.
"""

import functools
import sys
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any

from calque.upstream.python_internals import entered_unseen

_STRAY_AFTER = 1.0  # seconds
_STRAY_CALLS = 1000

NOTHING: frozenset[None] = frozenset()

taken: list[BaseException] = []
"""The exception that was set while C++ used a function of `hold`, and has been cleared, because
CPython would treat the call as failed. The backward pass raises it again (`backward_errors`)."""


class TrackedFunction:
    """A function that only C++ looks up, whose reference count shows whether C++ is using it.

    Attributes:
        function: the callable for C++, to which no other references may exist.
    """

    def __init__(self, function: FunctionType) -> None:
        # A wrapper, because tracebacks may hold references to the function itself.
        self.function: functools.partial[Any] = functools.partial(function)
        self._usual = sys.maxsize  # no waiting before `count`
        self._since = 0.0
        self._times = 0

    def count(self) -> None:
        """Store the current number of references as the normal one."""
        self._usual = sys.getrefcount(self.function)

    def is_held(self) -> bool:
        """Returns True if C++ is between looking the function up and the end of its call.

        A permanent reference has a different cause (a tool that references all objects), and must
        not defer signals forever.
        """
        if sys.getrefcount(self.function) <= self._usual:
            self._times = 0
            return False
        if not self._times:
            self._since = time.monotonic()
        self._times += 1
        # Both limits: the process may have been stopped for a while, or this may be called very
        # often.
        return self._times < _STRAY_CALLS or time.monotonic() - self._since < _STRAY_AFTER


_held: list[TrackedFunction] = []


def hold(function: FunctionType) -> Callable[[], Any]:
    """Returns a callable for a C++ guard that cannot handle exceptions; signal handlers wait while
    it is used.
    """
    held = TrackedFunction(entered_unseen(function))
    _held.append(held)
    return held.function


def be_ready() -> None:
    """Start making handlers wait, once the result of `hold` is in place."""
    for held in _held:
        held.count()


def is_any_held() -> bool:
    """Returns True if C++ is using one of the functions."""
    return any(held.is_held() for held in _held)


def take(error: BaseException) -> bool:
    """Store an exception that was already set when a signal was handled; returns False if the C++
    code that looked for signals can handle it.
    """
    before = error.__traceback__
    error.__traceback__ = before and before.tb_next  # without the frame of `__call__`
    if is_any_held():
        taken[:] = [error]
        return True
    return False
