"""The trace that runs in this thread, if one does."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Stack(threading.local):
    """The traces that run in one thread, the innermost last; None for one that is suspended."""

    def __init__(self) -> None:
        self.traces: list[Any] = []


_stack = _Stack()
in_process: list[None] = []
"""One item for each running trace in this process, in any thread."""


def current_trace() -> Any:
    """Returns the innermost trace of this thread; None outside of one,
    and while one is suspended.
    """
    traces = _stack.traces
    return traces[-1] if traces else None


@contextmanager
def tracing(trace: Any) -> Iterator[None]:
    """Makes `trace` the current one of this thread."""
    _stack.traces.append(trace)
    in_process.append(None)
    try:
        yield
    finally:
        _stack.traces.pop()
        in_process.pop()


@contextmanager
def suspended() -> Iterator[None]:
    """Lets code run in this thread as if nothing was traced."""
    with tracing(None):
        yield


def has_trace() -> bool:
    """Returns True if this thread is inside a trace, suspended or not."""
    return bool(_stack.traces)


def is_tracing() -> bool:
    """Returns True if a symbolic trace runs in this thread."""
    return current_trace() is not None
