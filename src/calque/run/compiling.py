"""Let code that a trace runs leave out its branches on values.

`torch.compiler.is_compiling()` is true, by which PyTorch's own code and libraries decide, as they
do under `torch.compile`; and `torch.distributions` does not look whether the values of its
parameters are valid, unless it is asked to by `validate_args=True`. Both are settings of the
process, so that they hold until the last trace ends.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributions import Distribution

_lock = threading.Lock()
_running = 0
_before = (False, True)


@contextmanager
def announced_as_compiling() -> Iterator[None]:
    """Within, code that asks is told that it is compiled (see the module)."""
    global _running, _before
    with _lock:
        if not _running:
            _before = torch.compiler._is_compiling_flag, Distribution._validate_args
        torch.compiler._is_compiling_flag, Distribution._validate_args = True, False
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if not _running:
                torch.compiler._is_compiling_flag, Distribution._validate_args = _before


def told_to_compile(told: bool) -> None:
    """Change, within `announced_as_compiling`, what code is told that asks."""
    torch.compiler._is_compiling_flag = told
