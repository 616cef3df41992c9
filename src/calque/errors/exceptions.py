"""The hierarchy of calque's exceptions.

    CalqueError
    ├── TraceError          (also a RuntimeError)         a program that cannot be traced faithfully
    ├── UnsupportedOpError  (also a NotImplementedError)  an operator that nothing can serve
    ├── FederatedTypeError  (also a TypeError)            federated types or placements do not fit
    ├── ClientError         (also a RuntimeError)         one client's data or result is not usable
    └── InternalError       (also a RuntimeError)         a bug in calque; please report it

Warnings are `FallbackWarning`, `EagerWarning`, `CacheWarning`, `RetraceWarning` and
`ShapeWarning` (all `UserWarning`s).

Errors that PyTorch itself raises on other devices (a shape mismatch, an index out of range) have
PyTorch's own class instead.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from calque.errors.frames import at_user_line

_noted = threading.local()
_uses_elsewhere: list[tuple[int, list["TraceError"]]] = []


class CalqueError(Exception):
    """The base class of every exception that calque adds to PyTorch's own."""


class TraceError(CalqueError, RuntimeError):
    """A traced program did something that a graph or XLA program cannot repeat."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        refusals = getattr(_noted, "refusals", None)
        if refusals is not None:
            refusals.append(self)


@contextmanager
def preparing_errors() -> Iterator[None]:
    """A context manager in which new errors are not recorded, because they may never be raised."""
    before = getattr(_noted, "refusals", None)
    _noted.refusals = None
    try:
        yield
    finally:
        _noted.refusals = before


def note_refusal(error: BaseException) -> None:
    """Record a prepared error that is now raised."""
    refusals = getattr(_noted, "refusals", None)
    if refusals is not None and isinstance(error, TraceError):
        refusals.append(error)


@contextmanager
def noting_refusals() -> Iterator[list[TraceError]]:
    """A context manager that records every `TraceError` of this thread, even if it is caught."""
    before = getattr(_noted, "refusals", None)
    refusals: list[TraceError] = []
    _noted.refusals = refusals
    try:
        yield refusals
    finally:
        _noted.refusals = before


def note_use_elsewhere(error: TraceError) -> None:
    """Record an error of code that uses tensors of another thread's trace."""
    me = threading.get_ident()
    for thread, uses in tuple(_uses_elsewhere):
        if thread != me:
            uses.append(error)


@contextmanager
def noting_uses_elsewhere() -> Iterator[list[TraceError]]:
    """A context manager that records these errors of all other threads."""
    uses: list[TraceError] = []
    mine = threading.get_ident(), uses
    _uses_elsewhere.append(mine)
    try:
        yield uses
    finally:
        _uses_elsewhere[:] = [one for one in _uses_elsewhere if one is not mine]


class UnsupportedOpError(CalqueError, NotImplementedError):
    """An operator has no rule, no decomposition and no CPU kernel that can run it."""


class FederatedTypeError(CalqueError, TypeError):
    """Types or placements of a federated computation do not fit."""


class ClientError(CalqueError, RuntimeError):
    """A value that one client holds or computes cannot be used; the message names the client.

    Attributes:
        position: the client's position in the call, if the error was found after the call.
    """

    position: int | None = None


class InternalError(CalqueError, RuntimeError):
    """calque failed in a call that is valid in PyTorch: a bug in calque."""


class FallbackWarning(UserWarning):
    """An operator ran on the CPU because the device has no rule for it."""


class EagerWarning(UserWarning):
    """Calls of a jitted function run eagerly from now on, or one call of a compiled function
    did.
    """


class CacheWarning(UserWarning):
    """Compiled programs cannot be stored for later processes."""


class RetraceWarning(UserWarning):
    """A jitted function is traced at each call, or repeatedly for different arguments."""


class ShapeWarning(UserWarning):
    """A line is compiled repeatedly, because its tensors have a different length each time."""


for _public in (
    *(CalqueError, TraceError, UnsupportedOpError, FederatedTypeError, ClientError, InternalError),
    *(FallbackWarning, EagerWarning, CacheWarning, RetraceWarning, ShapeWarning),
):
    _public.__module__ = "calque"  # so that tracebacks print the public name


def unrepeatable(what: str, why: str, remedy: str) -> TraceError:
    """Returns the error for an operation that an XLA program cannot repeat, at the user's line.

    Args:
        what: the operation, with the shape and dtype of its tensor.
        why: the reason, without a full stop.
        remedy: what to do instead, as a sentence.
    """
    return TraceError(at_user_line(f"{what} {why}.\n{remedy}"))
