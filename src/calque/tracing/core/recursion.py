"""The limit of Python's recursion while a program is traced.

A call of a module passes through functions of calque's, so that a program that nests deeply would
meet the limit earlier than by itself.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_FRAMES = 4
"""At least as many as there are, traced, for one of the program."""
_lock = threading.Lock()
_traces: int = 0
_before: int = 0


@contextmanager
def deeper_recursion() -> Iterator[None]:
    """A context in which programs may nest as deeply as they may by themselves.

    The limit is one for all threads: the first trace raises it, and the last one takes it back,
    unless the program has set another one.
    """
    global _traces, _before
    with _lock:
        if _traces == 0:
            _before = sys.getrecursionlimit()
            sys.setrecursionlimit(_before * _FRAMES)
        _traces += 1
    try:
        yield
    finally:
        with _lock:
            _traces -= 1
            if _traces == 0 and sys.getrecursionlimit() == _before * _FRAMES:
                sys.setrecursionlimit(_before)
