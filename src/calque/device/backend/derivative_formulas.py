"""Derivatives of PyTorch's that branch on values, in traces where nobody tells them.

The formulas for `max()`, `min()`, `median()`, `prod()` and `cumprod()` ask whether a value is NaN
or zero. While a dispatch mode is on, PyTorch takes tensors for those of a subclass, which may have
no values, and computes with masks instead.
"""

import contextlib
from typing import Any

from calque.device.memory.cell import active
from calque.upstream.dispatch_mode import DispatchMode


class _Unchanged(DispatchMode):
    """Runs every operator as it is."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def by_masks() -> contextlib.AbstractContextManager[Any]:
    """Inside this context, a backward in a trace that knows no values asks for none."""
    trace = active.trace
    if trace is None or trace.assumptions is not None:
        return contextlib.nullcontext()
    return _Unchanged()
