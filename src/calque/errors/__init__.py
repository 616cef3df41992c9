"""Errors, and where in the user's program they come from."""

from calque.errors.exceptions import (
    CalqueError,
    EagerWarning,
    InternalError,
    RetraceWarning,
    TraceError,
    UnsupportedOpError,
    note_refusal,
    noting_refusals,
    preparing_errors,
    unrepeatable,
)
from calque.errors.frames import Origin, user_frame, user_origin
from calque.errors.tracebacks import tidy

__all__ = [
    "CalqueError",
    "EagerWarning",
    "InternalError",
    "Origin",
    "RetraceWarning",
    "TraceError",
    "UnsupportedOpError",
    "note_refusal",
    "noting_refusals",
    "preparing_errors",
    "tidy",
    "unrepeatable",
    "user_frame",
    "user_origin",
]
