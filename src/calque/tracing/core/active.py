"""The trace that runs in this thread, if one does."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Stack(threading.local):
    """The traces that run in one thread, the innermost last; None for one that is suspended."""

    def __init__(self) -> None:
        self.traces: list[Any] = []


traces_of: _Stack = _Stack()
"""The traces of each thread."""


def current_trace() -> Any:
    """The innermost trace of this thread; None outside of one, and while one is suspended."""
    traces = traces_of.traces
    return traces[-1] if traces else None


@contextmanager
def tracing(trace: Any) -> Iterator[None]:
    """Makes `trace` the current one of this thread."""
    traces_of.traces.append(trace)
    try:
        yield
    finally:
        traces_of.traces.pop()


@contextmanager
def suspended() -> Iterator[None]:
    """Lets code run in this thread as if nothing was traced."""
    with tracing(None):
        yield


def has_trace() -> bool:
    """Returns True if this thread is inside of a trace, suspended or not."""
    return bool(traces_of.traces)


def is_tracing() -> bool:
    """Returns True if a symbolic trace runs in this thread."""
    return current_trace() is not None
