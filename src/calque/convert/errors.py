"""Errors of conversion."""

from calque.errors import CalqueError


class ConversionError(CalqueError, ValueError):
    """Raised if a program cannot be written in a format, or a file's content is not valid."""
