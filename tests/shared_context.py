"""JAX lowers every program in an MLIR context of its own; here one serves those of some tests.

A context takes four milliseconds to make, a fifth of what an operator costs at its first call, and
more than a megabyte as long as JAX remembers the program. Each thread has its own, for a context
may not be changed by two.
"""

import functools
import threading

from jax._src.interpreters import mlir

_make = mlir.make_ir_context


class _Shared(threading.local):
    """A thread's context."""

    def __init__(self) -> None:
        self.context = _make()


_shared = _Shared()


def share_contexts() -> None:
    # Not a Python function, which a trace would treat as part of the program.
    mlir.make_ir_context = functools.partial(getattr, _shared, "context")


def renew_context() -> None:
    """A context keeps the types and constants of all its programs."""
    _shared.context = _make()
