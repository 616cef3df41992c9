"""Errors, and where in the user's program they come from."""

from calque.diagnostics.errors import CalqueError, TraceError, UnsupportedOpError
from calque.diagnostics.frames import Origin, user_frame, user_origin

__all__ = ["CalqueError", "Origin", "TraceError", "UnsupportedOpError", "user_frame", "user_origin"]
