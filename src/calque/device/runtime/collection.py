"""Keeps JAX from creating tracebacks while Python 3.11 collects garbage.

JAX's extension gathers the frames of a traceback first and then allocates it. On Python 3.11 an
allocation may collect garbage there and then. If a finalizer uses JAX, which gathers frames for a
traceback of its own, code objects are released once too often, and the process crashes later,
anywhere. Python 3.12 and later collect garbage between instructions only.

The switch is one for all threads. Arrays that are made without tracebacks cannot be taken apart
with them: JAX raises ("Expecting an IFRT `Array` to have a user context"). So where another thread
may be in JAX while garbage is collected, tracebacks stay off from then on. Without them, only the
lines in StableHLO and in profiles are missing.
"""

import gc
import sys
import threading
from typing import Any

from calque.errors.frames import is_library
from calque.upstream.jax_internals import extension

_WAITING = ("wait", "_wait_for_tstate_lock", "select", "poll", "read")
"""Functions of libraries that wait, and do not call JAX."""

_are_off = False
"""Whether this module has turned tracebacks off for the collection that is under way."""


def install() -> None:
    """Register callbacks of the collector that turn tracebacks off and on again."""
    if sys.version_info < (3, 12) and hasattr(extension, "set_tracebacks_enabled"):
        gc.callbacks.append(_while_collecting)


def _while_collecting(phase: str, info: Any) -> None:
    global _are_off
    if phase == "start":
        if extension.tracebacks_enabled():
            extension.set_tracebacks_enabled(False)
            _are_off = not _others_run()
    elif _are_off:
        _are_off = False
        if not _others_run():
            extension.set_tracebacks_enabled(True)


def _others_run() -> bool:
    """Returns True if another thread is doing more than waiting."""
    return any(
        thread != threading.get_ident()
        and not (frame.f_code.co_name in _WAITING and is_library(frame.f_code.co_filename))
        for thread, frame in sys._current_frames().items()
    )
