"""Replaces PyTorch's derivative formulas that branch on values, in traces without values.

The formulas for `max()`, `min()`, `median()`, `prod()` and `cumprod()` check whether a value is NaN
or zero. While a dispatch mode is active, PyTorch treats tensors like subclasses, which may have no
values, and computes with masks instead.
"""

import contextlib
from typing import Any

from calque.device.memory.cell import active
from calque.upstream import torch_c
from calque.upstream.dispatch_mode import DispatchMode


class _Unchanged(DispatchMode):
    """A dispatch mode that runs every operator unchanged."""

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def by_masks() -> contextlib.AbstractContextManager[Any]:
    """A context manager in which backward passes of a trace need no values."""
    trace = active.trace
    if trace is None or trace.assumptions is not None:
        return contextlib.nullcontext()
    if torch_c.len_torch_dispatch_stack():  # every mode has this effect
        return contextlib.nullcontext()
    return _Unchanged()
