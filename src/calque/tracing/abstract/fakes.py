"""The mode in which abstract values are computed."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import torch

from calque.tracing.core.active import has_trace
from calque.tracing.core.patching import Patches
from calque.upstream.torch_internals import (
    FakeTensorMode,
    HigherOrderOperator,
    fake_tensor,
    while_loop_op,
)


def _grouped_mm(
    a: torch.Tensor, b: torch.Tensor, *args: Any, out_dtype: Any = None, **kwargs: Any
) -> torch.Tensor:
    low = torch.bfloat16
    found = torch.ops.aten._grouped_mm.default(a.to(low), b.to(low), *args, **kwargs)
    return found.to(out_dtype or a.dtype)


# Operators whose kernels take what PyTorch's shape functions for them refuse.
_WIDER: dict[Any, Callable[..., Any]] = {torch.ops.aten._grouped_mm.default: _grouped_mm}


def hold_log(patches: Patches) -> None:
    """Keep PyTorch from also logging shape errors, which are raised anyway."""
    patches.hold(fake_tensor, "log", _Quiet)


class _Quiet:
    """A logger that is silent in the thread of a trace."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log

    def exception(self, *args: Any, **kwargs: Any) -> None:
        if not has_trace():
            self._log.exception(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class AbstractMode(FakeTensorMode):
    """Like FakeTensorMode, but also computes with tensors that have data beside FakeTensors, and in
    several threads of a program: PyTorch's notes in itself whether a kernel runs.

    >>> with AbstractMode():
    ...     torch.ones(2, 3) @ torch.ones(3, 4)
    FakeTensor(..., size=(2, 4))
    """

    # PyTorch looks for what an operator with functions among its arguments does by the class.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._lock = threading.RLock()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is while_loop_op:  # what it carries looks the same after each turn
            _, body, carried, captured = args
            with self:
                return tuple(body(*carried, *captured))
        if isinstance(func, HigherOrderOperator):
            return func.python_key_table[FakeTensorMode](self, *args, **(kwargs or {}))
        wider = _WIDER.get(func)
        if wider is not None and args[0].dtype != torch.bfloat16:
            with self:
                return wider(*args, **(kwargs or {}))
        with self._lock:
            return super().__torch_dispatch__(func, types, args, kwargs)
