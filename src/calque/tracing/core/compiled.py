"""Functions and modules of `torch.compile` within a program that is traced."""

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
    """Inside this context, functions of `torch.compile` run as they were before, to be traced.

    That holds for all threads: PyTorch has one such setting. It is put back when the last of the
    threads that are here leaves.
    """
    if "torch._dynamo" not in sys.modules:  # nothing is compiled; importing it takes seconds
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
