"""Detects code that runs in the middle of a program without being part of it."""

import gc
import os
from types import FrameType

from calque.errors.handlers import RUN_APART

_LISTENED = os.path.join("jax", "_src", "monitoring.py")


def comes_between(frame: FrameType | None) -> bool:
    """Returns True if a frame does not belong to the program's run: an import, a callback of the
    garbage collector, a JAX event listener, or a signal handler.
    """
    collected = {id(getattr(called, "__code__", None)) for called in gc.callbacks}
    while frame is not None:
        code = frame.f_code
        if code.co_filename == "<frozen importlib._bootstrap>" or id(code) in collected:
            return True
        if code is RUN_APART or code.co_filename.endswith(_LISTENED):
            return True
        frame = frame.f_back
    return False
