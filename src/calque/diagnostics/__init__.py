"""Errors, and where in the user's program they come from."""

from calque.diagnostics.errors import (
    CalqueError,
    EagerWarning,
    InternalError,
    TraceError,
    UnsupportedOpError,
    unrepeatable,
)
from calque.diagnostics.frames import Origin, user_frame, user_origin
from calque.diagnostics.tracebacks import tidy

__all__ = [
    "CalqueError",
    "EagerWarning",
    "InternalError",
    "Origin",
    "TraceError",
    "UnsupportedOpError",
    "tidy",
    "unrepeatable",
    "user_frame",
    "user_origin",
]
