"""Python's recursion limit while a program is traced or recorded.

Each module call passes through functions of calque, so a deeply nested program would reach the
limit sooner than without them.
"""

import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_FRAMES = 4
"""The maximum number of frames of a traced call for each frame of a plain call."""
_BYTES = 640
"""The maximum size of a frame on the C stack: 420 to 520 bytes were measured."""
_USUAL_STACK = 8 << 20

_is_raised = False


@contextmanager
def deeper_recursion() -> Iterator[None]:
    """A context manager in which programs may nest as deeply as without a trace.

    The limit is raised in the main thread only, as far as its stack allows. Python does not report
    the size of another thread's stack, and overflowing it would end the process.
    """
    global _is_raised
    before = sys.getrecursionlimit()
    deeper = min(before * _FRAMES, _stack() // _BYTES)
    is_main = threading.current_thread() is threading.main_thread()
    if _is_raised or not is_main or deeper <= before:
        yield
        return
    _is_raised = True
    sys.setrecursionlimit(deeper)
    try:
        yield
    finally:
        _is_raised = False
        if sys.getrecursionlimit() == deeper:  # otherwise the program has changed it
            sys.setrecursionlimit(before)


def _stack() -> int:
    """Returns the size of the main thread's stack in bytes."""
    limit, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return _USUAL_STACK if limit == resource.RLIM_INFINITY else limit
