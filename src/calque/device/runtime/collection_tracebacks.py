"""Keeps JAX from creating tracebacks while Python 3.11 collects garbage.

JAX's extension first gathers the frames of a traceback and then allocates it. On Python 3.11, the
allocation may trigger garbage collection. If a finalizer then uses JAX, which gathers frames for
another traceback, code objects are released once too often, and the process crashes later. Python
3.12 and later collect garbage only between instructions.

The switch is global. Arrays created without tracebacks cannot be disassembled when tracebacks are
on: JAX raises "Expecting an IFRT `Array` to have a user context". So if another thread may be in
JAX while garbage is collected, tracebacks stay off from then on. Then only the source lines in
StableHLO and in profiles are missing.
"""

import gc
import sys
import threading

from calque.errors.frames import is_library
from calque.upstream.jax_internals import extension

_WAITING = ("wait", "_wait_for_tstate_lock", "select", "poll", "read")
"""Functions of libraries that wait without calling JAX."""

_are_off = False
"""Whether this module has turned off tracebacks for the current garbage collection."""


def install() -> None:
    """Register callbacks of the garbage collector that turn tracebacks off and on again."""
    if sys.version_info < (3, 12) and hasattr(extension, "set_tracebacks_enabled"):
        gc.callbacks.append(_while_collecting)


def _while_collecting(phase: str, info: object) -> None:
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
