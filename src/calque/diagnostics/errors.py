"""The tree of calque's exceptions.

    CalqueError
    ├── TraceError          (also a RuntimeError)         a program that cannot be traced faithfully
    ├── UnsupportedOpError  (also a NotImplementedError)  an operator nothing can serve
    └── InternalError       (also a RuntimeError)         a mistake in calque, to be reported

What PyTorch itself would raise on another device (a shape mismatch, an index out of range) is
raised as PyTorch's own class instead.
"""

from calque.diagnostics.frames import user_origin


class CalqueError(Exception):
    """The base of every exception that calque adds to PyTorch's own."""


class TraceError(CalqueError, RuntimeError):
    """A program did something while it was traced that one XLA program cannot reproduce."""


class UnsupportedOpError(CalqueError, NotImplementedError):
    """An operator has no rule, no decomposition and no CPU kernel that can serve it."""


class InternalError(CalqueError, RuntimeError):
    """Calque failed at a call that PyTorch finds nothing wrong with."""


class EagerWarning(UserWarning):
    """Calls of a jitted function run eagerly from now on."""


def unrepeatable(what: str, why: str, remedy: str) -> TraceError:
    """The error for a step that one XLA program cannot repeat, at the user's line.

    Args:
        what: the operation, and the shape and dtype of its tensor.
        why: the reason, without a full stop.
        remedy: what to do instead, as a sentence.
    """
    origin = user_origin()
    place = f"{origin}: " if origin else ""
    return TraceError(f"{place}{what} {why}.\n{remedy}")
