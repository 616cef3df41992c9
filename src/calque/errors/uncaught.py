"""What Python prints of an exception that nobody caught: the user's frames, where calque ran.

An eager operator raises in the middle of PyTorch's and calque's frames, and more of PyTorch's lie
around it, which no library can take away on the way out. So they are left out where the traceback
is printed. Exceptions that did not pass through calque's code are printed as ever.
"""

import os
import sys
from types import TracebackType

from calque.errors.exceptions import CalqueError
from calque.errors.frames import is_librarys
from calque.errors.tracebacks import is_full, with_user_frames_only

_CALQUE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def install() -> None:
    """Stand in front of `sys.excepthook`, whatever it is."""
    theirs = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        if isinstance(error, Exception) and not is_full() and _is_ours(error, tb):
            with_user_frames_only(error)
            tb = error.__traceback__
        theirs(kind, error, tb)

    sys.excepthook = show


def _is_ours(error: Exception, tb: TracebackType | None) -> bool:
    """Whether an exception passed through calque, and through code of the user's."""
    ours, users = isinstance(error, CalqueError), False
    while tb is not None:
        ours = ours or tb.tb_frame.f_code.co_filename.startswith(_CALQUE)
        users = users or not is_librarys(tb.tb_frame)
        tb = tb.tb_next
    return ours and users
