"""The threads that use the device.

Most programs use it from one thread. A call in the only thread needs no locks for its changes: it
holds `turn`, or is counted in `alone`, and a thread that uses the device for the first time waits
for it.
"""

import threading
import time

from calque.upstream import torch_c

_PATIENCE = 1.0  # seconds
_SOON = 0.0002  # seconds

turn: threading.RLock = threading.RLock()
"""Held by a call that counts on being alone, and for a moment by those that look after others."""

present: set[int] = set()
"""One member for each thread. With a single one, the calling thread is alone until it releases
`turn`, or for as long as it is counted in `alone`."""


class _Alone:
    """Counts the calls that run because their thread is alone.

    A call is counted before it looks at `present`, and a new thread is in `present` before it looks
    here: one of the two sees the other. To count takes a tenth of the time of a lock. A thread must
    be in `present` itself before a call of its own is counted, or it would wait for itself.
    """

    calls = 0


alone: _Alone = _Alone()


class Presence:
    """Marks that a thread uses the device; belongs in its local data, and ends with it."""

    __slots__ = ()

    def __init__(self, _present: set[int] = present) -> None:
        known = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
        # One that Python did not start has a dummy there, once somebody has asked for its name.
        own = known is not None and not isinstance(known, threading._DummyThread)
        if not own and torch_c.current_graph_task_id() >= 0:
            return  # a worker of autograd's: the thread that called `backward` waits for it
        _present.add(id(self))
        # A thread of XLA's that calls back may be what the call waits for.
        if turn.acquire(timeout=-1 if own else _PATIENCE):
            turn.release()
        until = time.monotonic() + _PATIENCE
        while alone.calls and (own or time.monotonic() < until):
            time.sleep(_SOON)

    def __del__(self, _present: set[int] = present) -> None:
        _present.discard(id(self))
