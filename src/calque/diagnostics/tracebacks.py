"""Tracebacks that show the user's own frames."""

import os
from types import TracebackType
from typing import TypeVar

from calque.diagnostics.errors import CalqueError
from calque.diagnostics.frames import is_librarys

E = TypeVar("E", bound=BaseException)


def tidy(error: E) -> E:
    """The same exception, its traceback without the frames of libraries, to be raised again.

    Of calque's own errors, which name the line themselves, only the innermost frame is kept.
    With `CALQUE_TRACEBACK=full` in the environment nothing is left out.
    """
    if os.environ.get("CALQUE_TRACEBACK") == "full":
        return error
    frames = []
    step = error.__traceback__
    while step is not None:
        if not is_librarys(step.tb_frame):
            frames.append(step)
        step = step.tb_next
    if isinstance(error, CalqueError):
        frames = frames[-1:]
    notes = getattr(error, "__notes__", None)
    if notes:
        notes[:] = [note for note in notes if "JAX has removed its internal frames" not in note]
    return error.with_traceback(_chain(frames))


def _chain(frames: list[TracebackType]) -> TracebackType | None:
    chained = None
    for step in reversed(frames):
        chained = TracebackType(chained, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return chained
