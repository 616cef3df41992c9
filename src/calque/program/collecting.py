"""Python's garbage collector while a program is traced.

A trace makes hundreds of thousands of objects, nearly all of which live until it ends. The
collector looks at them, and at all that PyTorch and JAX hold, again and again, for half of the time
that a deep model takes. So it waits longer meanwhile; what is garbage goes a little later.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LEAST = 200_000
"""How many new objects the collector waits for."""

_lock = threading.Lock()
_waiting = 0
_before = _raised = (0, 0, 0)


@contextmanager
def collecting_less() -> Iterator[None]:
    """Inside this context, the collector runs rarely, unless it is off or waits as long already."""
    global _waiting, _before, _raised
    with _lock:
        _waiting += 1
        if _waiting == 1:
            _before = gc.get_threshold()
            _raised = (_LEAST, *_before[1:])
            if 0 < _before[0] < _LEAST:
                gc.set_threshold(*_raised)
    try:
        yield
    finally:
        with _lock:
            _waiting -= 1
            if _waiting == 0 and gc.get_threshold() == _raised:  # else it was set meanwhile
                gc.set_threshold(*_before)
