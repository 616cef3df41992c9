"""Let code that a trace runs leave out its branches on values.

`torch.compiler.is_compiling()` is true, by which PyTorch's own code and libraries decide, as they
do under `torch.compile`; and `torch.distributions` does not look whether the values of its
parameters are valid, unless it is asked to by `validate_args=True`. Both are settings of the
process, so that they hold until the last trace ends. Dynamo sets the first one, too, while it
compiles, and puts back what it found: one must not begin while the other is at work in another
thread, or the setting would stay.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from calque.upstream import torch_internals

_lock = threading.Lock()
_running = 0
_before = (False, True)


@contextmanager
def announced_as_compiling() -> Iterator[None]:
    """`torch.compiler.is_compiling()` returns True inside this context (see the module)."""
    global _running, _before
    with _while_dynamo_rests():
        with _lock:
            if not _running:
                _before = (
                    torch_internals.compiler._is_compiling_flag,
                    torch_internals.Distribution._validate_args,
                )
            (
                torch_internals.compiler._is_compiling_flag,
                torch_internals.Distribution._validate_args,
            ) = True, False
            _running += 1
        try:
            yield
        finally:
            with _lock:
                _running -= 1
                if not _running:
                    (
                        torch_internals.compiler._is_compiling_flag,
                        torch_internals.Distribution._validate_args,
                    ) = _before


def others_compile() -> bool:
    """Returns True if the flag is set by somebody else: dynamo, or `torch.export`."""
    if not torch_internals.compiler._is_compiling_flag:
        return False
    with _lock:  # another thread may be about to set it, or to take it back
        return torch_internals.compiler._is_compiling_flag and not _running


def _while_dynamo_rests() -> AbstractContextManager[Any]:
    """Dynamo's own lock, which a thread may take again."""
    dynamo = sys.modules.get("torch._dynamo.convert_frame")
    return getattr(dynamo, "compile_lock", None) or nullcontext()


def told_to_compile(told: bool) -> None:
    """Change, within `announced_as_compiling`, what code is told that asks."""
    torch_internals.compiler._is_compiling_flag = told
