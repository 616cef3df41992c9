"""Tracks the threads that use the device.

Most programs use it from one thread. A call in the only thread needs no locks: it holds `turn`, or
is counted in `alone`, and a thread that uses the device for the first time waits for it.
"""

import threading
import time

from calque.upstream import torch_c

_MAX_WAIT = 1.0  # seconds
_SOON = 0.0002  # seconds

turn: threading.RLock = threading.RLock()
"""Held by calls that must run alone, and briefly by threads that check for these."""

present: set[int] = set()
"""Has one member for each thread. If there is only one, the calling thread is alone until it
releases `turn`, or for as long as it is counted in `alone`.
"""


class _Alone:
    """Counts the running calls that rely on their thread being alone.

    A call is counted before it reads `present`, and a new thread enters `present` before it reads
    the count, so at least one of them sees the other. Counting takes a tenth of the time of a lock.
    A thread must be in `present` before its own calls are counted, or it would wait for itself.
    """

    calls = 0


alone: _Alone = _Alone()


class Presence:
    """Marks that a thread uses the device. It is kept in thread-local data, and removed with it."""

    __slots__ = ()

    def __init__(self, _present: set[int] = present) -> None:
        known = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
        # A thread that Python did not start may have a dummy entry.
        own = known is not None and not isinstance(known, threading._DummyThread)
        if not own and torch_c.current_graph_task_id() >= 0:
            return  # a thread of autograd, for which the caller of `backward` waits
        _present.add(id(self))
        # The running call may wait for this thread, if it is a callback of XLA.
        if turn.acquire(timeout=-1 if own else _MAX_WAIT):
            turn.release()
        until = time.monotonic() + _MAX_WAIT
        while alone.calls and (own or time.monotonic() < until):
            time.sleep(_SOON)

    def __del__(self, _present: set[int] = present) -> None:
        _present.discard(id(self))
