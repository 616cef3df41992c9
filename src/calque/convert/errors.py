"""Errors of conversion."""

from calque.errors import CalqueError


class ConversionError(CalqueError, ValueError):
    """A program cannot be written in a format, or a file does not hold what it should."""
