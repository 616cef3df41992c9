"""Tracebacks that show the user's own frames."""

import functools
import os
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from calque.errors.exceptions import CalqueError
from calque.errors.frames import is_librarys

E = TypeVar("E", bound=BaseException)
P = ParamSpec("P")
R = TypeVar("R")


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


def with_user_frames(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose exceptions show the user's own frames: for what users call.

    Functions of users may be called within, and call such functions in turn.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            tidy(error)
            raise  # which adds no frame, unlike `raise error`

    return call


def _chain(frames: list[TracebackType]) -> TracebackType | None:
    chained = None
    for step in reversed(frames):
        chained = TracebackType(chained, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return chained
