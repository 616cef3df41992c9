"""Tell code that asks, by `torch.compiler.is_compiling()`, that it is being compiled.

PyTorch's own code and libraries leave out their branches on values then, as they do under
`torch.compile`. The answer is one for the process, so that it holds until the last trace ends.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
_running = 0
_before = False


@contextmanager
def announced_as_compiling() -> Iterator[None]:
    """`torch.compiler.is_compiling()` is true within."""
    global _running, _before
    with _lock:
        if not _running:
            _before = torch.compiler._is_compiling_flag
        torch.compiler._is_compiling_flag = True
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if not _running:
                torch.compiler._is_compiling_flag = _before
