"""Lowers the programs of eager calls in MLIR contexts that many of them share.

JAX creates a context for each program, and keeps it as long as the program. That takes four
milliseconds, a fifth of an operator's first call, and more than a megabyte. An eager step consists
of a hundred small programs, so these share contexts. Larger programs have their own, because a
context keeps the types and constants of all programs lowered in it.
"""

import threading
from typing import Any

from calque.upstream.jax_internals import mlir

_PROGRAMS = 128  # per context
_make = mlir.make_ir_context


class _Sharing(threading.local):
    """The context of a thread, because only one thread at a time may change a context.

    Use it as a context manager around calls that may compile a small program.

    Attributes:
        wanted: whether the programs being lowered are small.
        context: the current context; None before the first program.
        left: the number of programs for which there is room in the context.
    """

    wanted: bool = False
    context: Any = None
    left: int = 0

    def __enter__(self) -> None:
        self.wanted = True

    def __exit__(self, *_: object) -> None:
        self.wanted = False


sharing: _Sharing = _Sharing()


def install() -> None:
    """Make JAX get the contexts of its programs from here."""
    mlir.make_ir_context = _context


def _context() -> Any:
    if not sharing.wanted:
        return _make()
    if sharing.left == 0:
        sharing.context, sharing.left = _make(), _PROGRAMS
    sharing.left -= 1
    return sharing.context
