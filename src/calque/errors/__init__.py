"""Errors, and the places in the user's program that cause them."""

from calque.errors.exceptions import (
    CacheWarning,
    CalqueError,
    ClientError,
    EagerWarning,
    FallbackWarning,
    FederatedTypeError,
    InternalError,
    RetraceWarning,
    ShapeWarning,
    TraceError,
    UnsupportedOpError,
    note_refusal,
    note_use_elsewhere,
    noting_refusals,
    noting_uses_elsewhere,
    preparing_errors,
    unrepeatable,
)
from calque.errors.frames import Origin, at_user_line, user_frame, user_origin
from calque.errors.tracebacks import tidy, with_user_frames

__all__ = [
    "CacheWarning",
    "CalqueError",
    "ClientError",
    "EagerWarning",
    "FallbackWarning",
    "FederatedTypeError",
    "InternalError",
    "Origin",
    "RetraceWarning",
    "ShapeWarning",
    "TraceError",
    "UnsupportedOpError",
    "at_user_line",
    "note_refusal",
    "note_use_elsewhere",
    "noting_refusals",
    "noting_uses_elsewhere",
    "preparing_errors",
    "tidy",
    "unrepeatable",
    "user_frame",
    "user_origin",
    "with_user_frames",
]
