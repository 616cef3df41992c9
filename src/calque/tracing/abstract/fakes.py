"""The mode in which abstract values are computed."""

import logging
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from calque.tracing.core.active import has_trace
from calque.tracing.core.patching import Patches
from calque.upstream.torch_internals import (
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    fake_tensor,
    while_loop_op,
)


def _grouped_mm(
    a: torch.Tensor, b: torch.Tensor, *args: Any, out_dtype: object = None, **kwargs: Any
) -> torch.Tensor:
    low = torch.bfloat16
    found = torch.ops.aten._grouped_mm.default(a.to(low), b.to(low), *args, **kwargs)
    return found.to(out_dtype or a.dtype)


def _index(x: torch.Tensor, indices: list[torch.Tensor | None]) -> torch.Tensor:
    return torch.ops.aten.index.Tensor(x, [_as_mask(index) for index in indices])


def _where(condition: torch.Tensor, *others: Any) -> torch.Tensor:
    return torch.ops.aten.where.self(_as_mask(condition), *others)


def _as_mask(given: Any) -> Any:
    return given.bool() if _is_of_bytes(given) else given


def _is_of_bytes(given: object) -> bool:
    return isinstance(given, torch.Tensor) and given.dtype is torch.uint8


_WIDER: dict[Any, tuple[Callable[..., bool], Callable[..., Any]]] = {
    torch.ops.aten._grouped_mm.default: (lambda a, *_: a.dtype != torch.bfloat16, _grouped_mm),
    torch.ops.aten.index.Tensor: (lambda _, indices: any(map(_is_of_bytes, indices)), _index),
    torch.ops.aten.where.self: (lambda condition, *_: _is_of_bytes(condition), _where),
}
"""Operators whose kernels accept arguments that PyTorch's shape functions reject: the condition,
and the operator to compute instead.
"""


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
    """Like FakeTensorMode, but it accepts tensors with data beside FakeTensors, and may be used by
    several threads: PyTorch's mode keeps the state of the running kernel in itself.

    >>> with AbstractMode():
    ...     torch.ones(2, 3) @ torch.ones(3, 4)
    FakeTensor(..., size=(2, 4))
    """

    # PyTorch dispatches higher-order operators by the class of the mode.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._lock = threading.RLock()

    def __torch_dispatch__(
        self,
        func: object,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is while_loop_op:  # one iteration suffices: loop variables keep their shapes
            _, body, carried, captured = args
            with self:
                return tuple(body(*carried, *captured))
        if isinstance(func, HigherOrderOperator):
            return func.python_key_table[FakeTensorMode](self, *args, **(kwargs or {}))
        refuses, wider = _WIDER.get(func, (None, None))
        if refuses is not None and wider is not None and refuses(*args):
            with self:
                return wider(*args, **(kwargs or {}))
        with self._lock:
            return super().__torch_dispatch__(func, types, args, kwargs)

    def from_tensor(self, tensor: torch.Tensor, **kwargs: Any) -> FakeTensor:
        """Returns the abstract value of a tensor."""
        if tensor.is_leaf:
            return super().from_tensor(tensor, **kwargs)
        with warnings.catch_warnings():  # PyTorch reads its gradient
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            return super().from_tensor(tensor, **kwargs)
