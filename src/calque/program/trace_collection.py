"""Python's garbage collector while a program is traced.

A trace creates hundreds of thousands of objects, nearly all of which live until it ends. The
collector repeatedly visits them and all objects of PyTorch and JAX, which for a deep model takes
half of the time. So it runs less often during a trace; garbage is freed a little later.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LEAST = 200_000
"""The number of new objects that starts a garbage collection."""

_MOST_OF_PYTHON = 2_000
"""More than the number of objects that Python freezes at its start (some hundred in 3.12), and less
than the number of all objects.
"""

_lock = threading.Lock()
_waiting = 0
_before = _raised = (0, 0, 0)
_collections: list[int] = []
"""The number of collections of each generation when the outermost context was entered."""


@contextmanager
def collecting_less() -> Iterator[None]:
    """A context manager in which the garbage collector runs rarely."""
    global _waiting, _before, _raised, _collections
    with _lock:
        _waiting += 1
        if _waiting == 1:
            _before, _collections = gc.get_threshold(), _counts()
            _raised = (_LEAST, *_before[1:])
            if 0 < _before[0] < _LEAST:
                gc.set_threshold(*_raised)
    try:
        yield
    finally:
        with _lock:
            _waiting -= 1
            # Otherwise it was changed meanwhile.
            if _waiting == 0 and gc.get_threshold() == _raised:
                gc.set_threshold(*_before)


@contextmanager
def collecting_nothing_new() -> Iterator[None]:
    """Like `collecting_less`, for objects that stay alive, so that no collection is needed at the
    end.
    """
    with collecting_less():
        yield
        if (
            gc.get_freeze_count() < _MOST_OF_PYTHON
        ):  # otherwise objects that the user has frozen would be unfrozen
            gc.freeze()
            gc.unfreeze()  # moves objects to the oldest generation


def collect_new() -> None:
    """Collect garbage among the objects created inside `collecting_less`.

    They begin in the youngest generation, and each collection moves survivors to the next one, so
    this skips generations that contain none of them. The oldest generation contains all objects of
    PyTorch and JAX, whose collection takes tenths of a second.
    """
    before, now = _collections, _counts()
    unchanged = [index for index in (0, 1, 2) if _waiting and now[index:] == before[index:]]
    gc.collect(unchanged[0] if unchanged else 2)


def _counts() -> list[int]:
    return [generation["collections"] for generation in gc.get_stats()]
