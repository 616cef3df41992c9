"""Functions and modules compiled by `torch.compile` in a traced program."""

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

_lock = threading.Lock()
_inside = 0
_stance = ExitStack()


@contextmanager
def as_written() -> Iterator[None]:
    """A context manager in which functions compiled by `torch.compile` run uncompiled, so they can
    be traced.

    This affects all threads, because PyTorch has one such setting. The last thread to leave
    restores it.
    """
    if "torch._dynamo" not in sys.modules:  # then nothing is compiled; the import takes seconds
        yield
        return
    global _inside
    with _lock:
        _inside += 1
        if _inside == 1:
            _stance.enter_context(torch.compiler.set_stance("force_eager"))
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _stance.close()
