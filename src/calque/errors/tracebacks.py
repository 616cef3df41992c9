"""Tracebacks that show the user's own frames."""

import functools
import os
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from calque.errors.exceptions import CalqueError
from calque.errors.frames import is_librarys
from calque.errors.layers import layer_of

E = TypeVar("E", bound=BaseException)
P = ParamSpec("P")
R = TypeVar("R")

_LAYER = "in layer "


def is_full() -> bool:
    """Returns True if tracebacks should be complete: `CALQUE_TRACEBACK=full`."""
    return os.environ.get("CALQUE_TRACEBACK") == "full"


def tidy(error: E) -> E:
    """Returns the same exception, without library frames in its traceback, to be raised again.

    Only the innermost frame of calque's own errors is kept, because they name the line themselves.
    The layer that was running is added as a note. Exceptions in the chain that libraries caught are
    removed; those that the user's code caught are kept. With `CALQUE_TRACEBACK=full` in the
    environment nothing is removed.
    """
    if is_full():
        return error
    innermost = isinstance(error, CalqueError)
    with_user_frames_only(error, innermost)
    return error


def with_user_frames_only(error: BaseException, innermost: bool = False) -> None:
    """Remove library frames, and exceptions that libraries caught.

    Args:
        error: the exception; it is changed in place.
        innermost: whether only the innermost of the user's frames is kept.
    """
    _name_layer(error)
    frames = _user_frames(error.__traceback__)
    if innermost:
        frames = frames[-1:]
    notes = getattr(error, "__notes__", None)
    if notes:
        notes[:] = [note for note in notes if "JAX has removed its internal frames" not in note]
    error.__traceback__ = _chain(frames)
    _leave_out_internal(error)


def with_user_frames(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator for public functions, whose exceptions then show only the user's frames.

    These may call functions of the user, which may call decorated functions again.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            tidy(error)
            raise  # adds no frame, unlike `raise error`

    return call


def _name_layer(error: BaseException) -> None:
    if any(note.startswith(_LAYER) for note in getattr(error, "__notes__", ())):
        return
    layer = layer_of(error.__traceback__)
    if layer is not None:
        error.add_note(_LAYER + layer)


def _leave_out_internal(error: BaseException) -> None:
    """Drop earlier exceptions in the chain that libraries caught; tidy those that users caught."""
    seen = {id(error)}
    while True:
        for name in ("__cause__", "__context__"):
            before = getattr(error, name)
            if before is not None and _is_internal(before, error):
                suppressed = error.__suppress_context__
                setattr(error, name, None)
                error.__suppress_context__ = suppressed and name == "__context__"
        following = error.__cause__ or error.__context__
        if following is None or id(following) in seen:
            return
        seen.add(id(following))
        following.__traceback__ = _chain(_user_frames(following.__traceback__))
        error = following


def _is_internal(error: BaseException, later: BaseException) -> bool:
    """Returns True if the outermost frame of an exception, which caught it, belongs to a library.

    For an exception that was never raised, only named in `raise later from error`, the code with
    that statement counts.
    """
    traceback = error.__traceback__
    if traceback is None and later.__cause__ is error:
        traceback = later.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
    return traceback is None or is_librarys(traceback.tb_frame)


def _user_frames(traceback: TracebackType | None) -> list[TracebackType]:
    frames = []
    while traceback is not None:
        if not is_librarys(traceback.tb_frame):
            frames.append(traceback)
        traceback = traceback.tb_next
    return frames


def _chain(frames: list[TracebackType]) -> TracebackType | None:
    chained = None
    for step in reversed(frames):
        chained = TracebackType(chained, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return chained
