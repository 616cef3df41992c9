"""Exceptions raised by hooks during a backward.

When a hook raises, PyTorch's engine unwinds with the Python exception still set, and on the way
asks the device's guard, which is Python, for the device's type. CPython takes any call that
returns with an exception set for a failed one, and C++ would end the process. So the guard takes
the exception away, and the backward, which then fails without saying why, raises it again.
"""

import functools
from typing import Any

import torch

_KIND = torch._C._autograd.DeviceType.PrivateUse1
_NOTHING: frozenset[None] = frozenset()
_taken: list[BaseException] = []


def device_type() -> Any:
    """The type of the device; an exception that is set already is put aside."""
    try:
        # The end of a loop is where the interpreter looks for an exception that C code has set.
        for _ in _NOTHING:
            pass
    except BaseException as error:
        _taken[:] = [error]
    return _KIND


def install() -> None:
    """Have `backward` and `grad` raise what the guard put aside."""
    run = torch.autograd.graph._engine_run_backward

    @functools.wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except SystemError:
            if not _taken:
                raise
            error = _taken.pop()
        raise error

    for module in (torch.autograd.graph, torch.autograd):
        module._engine_run_backward = run_backward  # type: ignore[attr-defined]
