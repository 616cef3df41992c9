"""Makes code in a trace skip its branches on values.

As under `torch.compile`, `torch.compiler.is_compiling()`, which PyTorch and other libraries check,
returns True, and `torch.distributions` does not validate the values of its parameters without
`validate_args=True`. Both settings are process-wide, so they hold until the last trace ends. Dynamo
also sets the first one while it compiles, and restores it. Neither must start while the other is
running in another thread, or the setting would remain.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from calque.upstream import torch_internals

_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_COMPILING = tuple(
    os.path.join(_TORCH, *names)
    for names in (
        ("export", ""),
        ("_export", ""),
        ("_functorch", "_aot_autograd", ""),
        ("_dynamo", "convert_frame.py"),
        ("_dynamo", "functional_export.py"),
    )
)
_lock = threading.Lock()
_running = 0
_before = (False, True)


@contextmanager
def announced_as_compiling() -> Iterator[None]:
    """A context manager in which `torch.compiler.is_compiling()` returns True."""
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
    """Returns True if dynamo or `torch.export` is compiling in this thread.

    They set the flag for all threads, so the flag does not show this.
    """
    if not torch_internals.compiler._is_compiling_flag:
        return False
    with _lock:  # another thread may be about to set or restore it
        if _running or not torch_internals.compiler._is_compiling_flag:
            return False
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith(_COMPILING):
        frame = frame.f_back
    return frame is not None


def _while_dynamo_rests() -> AbstractContextManager[Any]:
    """A context manager that holds dynamo's reentrant lock."""
    dynamo = sys.modules.get("torch._dynamo.convert_frame")
    return getattr(dynamo, "compile_lock", None) or nullcontext()


def compiling_flag(value: bool) -> None:
    """Change the result of `is_compiling()` inside `announced_as_compiling`."""
    torch_internals.compiler._is_compiling_flag = value
