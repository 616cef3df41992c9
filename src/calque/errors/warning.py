"""Warnings that point at the user's line: that of the call, or that of a function's definition."""

import inspect
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

from calque.errors.frames import user_frame


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Like `warnings.warn`, at the user's innermost line, or at the caller's if there is none."""
    frame: FrameType = user_frame() or sys._getframe(1)
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__") or "<unknown>",
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def warn_of_function(function: Callable[..., Any], message: str, category: type[Warning]) -> None:
    """Warn at the line where a function, or the `forward` of a module, is defined."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    code = code or getattr(getattr(type(function), "forward", None), "__code__", None)
    name = getattr(function, "__qualname__", type(function).__name__)
    file, line = (code.co_filename, code.co_firstlineno) if code else ("<unknown>", 0)
    warnings.warn_explicit(f"{name} {message}", category, file, line)
