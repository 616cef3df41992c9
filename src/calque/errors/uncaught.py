"""Prints uncaught exceptions that passed through calque with only the user's frames.

An eager operator raises inside frames of PyTorch and calque, with outer frames of PyTorch that a
library cannot remove from the exception. So they are omitted when the traceback is printed.
Exceptions that did not pass through calque's code are printed as usual, but wrong uses of calque in
PyTorch's or JAX's own functions get a hint (`hints`).

Workers of a `DataLoader` and threads of `DataParallel` send the traceback as the text of an
exception that is raised again in the user's loop; this text is treated like a traceback.
"""

import os
import re
import sys
from types import TracebackType

from calque.errors.exceptions import CalqueError
from calque.errors.frames import is_library, is_librarys
from calque.errors.hints import add_hint
from calque.errors.tracebacks import is_full, with_user_frames_only

_CALQUE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_SENT = "\nOriginal Traceback (most recent call last):\n"  # from torch._utils.ExceptionWrapper
# A frame as Python prints it: its file, then lines of the program, further indented.
_FRAME = r'  File "(?P<file>[^"\n]*)", line \d+.*\n(?:    .*\n)*'


def install() -> None:
    """Wrap `sys.excepthook`."""
    theirs = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        if isinstance(error, Exception) and not is_full():
            if _is_ours(error, tb, add_hint(error)):
                with_user_frames_only(error)
                _shorten_sent(error)
                tb = error.__traceback__
        theirs(kind, error, tb)

    sys.excepthook = show


def _is_ours(error: Exception, tb: TracebackType | None, has_hint: bool) -> bool:
    """Returns True if an exception passed through the user's code, and either passed through calque
    or has a hint.
    """
    ours, users = has_hint or isinstance(error, CalqueError) or _is_sent_by_ours(error), False
    while tb is not None:
        ours = ours or tb.tb_frame.f_code.co_filename.startswith(_CALQUE)
        users = users or not is_librarys(tb.tb_frame)
        tb = tb.tb_next
    return ours and users


def _is_sent_by_ours(error: Exception) -> bool:
    """Returns True if an exception contains the text of one that passed through calque
    in another process.
    """
    _, mark, after = _text(error).partition(_SENT)
    return bool(mark) and any(
        frame["file"].startswith(_CALQUE) for frame in re.finditer(_FRAME, after)
    )


def _shorten_sent(error: Exception) -> None:
    """Remove library frames from a traceback in an exception's text."""
    before, mark, after = _text(error).partition(_SENT)
    if mark:
        kept = re.sub(_FRAME, lambda frame: "" if is_library(frame["file"]) else frame[0], after)
        error.args = (before + mark + kept,)


def _text(error: Exception) -> str:
    """Returns the text that an exception was created with; empty if it was not a single string."""
    only = error.args[0] if len(error.args) == 1 else ""
    return only if isinstance(only, str) else ""
