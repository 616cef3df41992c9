"""PyTorch operators that read values only to refuse invalid ones. PyTorch's code branches on the
values, which a trace does not have. A trace assumes valid values, and checks them if requested
(`trace_checks`).
"""

import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.nn import functional as F

from calque.device.kernels import trace_checks
from calque.device.kernels.binding import overload_of, untraced
from calque.device.memory.cell import active, read
from calque.errors.branches import harmless_answer, line_of
from calque.errors.frames import is_library

Tensor = torch.Tensor

REFUSALS: dict[CodeType, Exception] = {
    F.gaussian_nll_loss.__code__: ValueError("var has negative entry/entries"),
}
"""Functions that raise an error if a boolean tensor is true, and the errors."""


_IS_ZERO = "Expected Tensor with single nonzero value, but got zero"

_DEPTH = 12
"""The greatest number of dispatcher frames between such a function and the read of the value."""

_TORCH = str(Path(torch.__file__).parent)
_BETWEEN = (
    str(Path(__file__).parent.parent.parent),
    *(f"{_TORCH}/{name}" for name in ("_ops.py", "_compile.py", "_dynamo/", "utils/_python_")),
)
"""The files with the code of these frames."""


def answer(value: Tensor) -> bool | None:
    """Returns the assumed value of a boolean that the caller only uses to raise an error; None for
    others.
    """
    frame = sys._getframe(1)
    for _ in range(_DEPTH):
        error = REFUSALS.get(frame.f_code)
        if error is not None:
            _refuse(value, error)
            return False
        if value.dtype == torch.bool and not frame.f_code.co_filename.startswith(_BETWEEN):
            return _answer_of(value, frame)
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


def _answer_of(value: Tensor, frame: FrameType) -> bool | None:
    answer = harmless_answer(frame)
    users = not is_library(frame.f_code.co_filename)
    if answer is None or (users and not trace_checks.reported()):
        return None
    error = RuntimeError(f"the condition of this line does not hold: {line_of(frame)}")
    _refuse(~value if answer else value, error, users)
    return answer


def _refuse(bad: Tensor, error: Exception, always: bool = False) -> None:
    if bad.device.type == "jax":
        failed = read(bad)
        trace_checks.collect(failed, failed, lambda _: error, always)


def cov(
    self: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """Implements `torch.cov`; in a trace, without the warning about degrees of freedom."""
    if active.trace is None:
        composite: Any = overload_of("aten::cov")
        return composite.decompose(
            self, correction=correction, fweights=fweights, aweights=aweights
        )
    _check_cov(self, fweights, aweights)
    rows = self if self.ndim == 2 else self.reshape(1, -1)
    weights = fweights
    if aweights is not None:
        weights = aweights if weights is None else weights * aweights
    if weights is None:
        average = rows.sum(1) / rows.size(1)
        centered = rows - average.unsqueeze(1)
        freedom = max(rows.size(1) - correction, 0)
        return torch.mm(centered, centered.mT.conj()).div(freedom).squeeze()
    total = weights.sum()
    _refuse(total == 0, RuntimeError("cov(): weights sum to zero, can't be normalized"))
    centered = rows - ((rows * weights).sum(1) / total).unsqueeze(1)
    lost: Any = correction
    if aweights is not None and correction:
        lost = correction * (weights * aweights).sum() / total
    freedom = (total - lost).clamp(min=0)
    return torch.mm(centered, (centered * weights).mT.conj()).div(freedom).squeeze()


def _check_cov(self: Tensor, fweights: Tensor | None, aweights: Tensor | None) -> None:
    if self.ndim > 2:
        raise RuntimeError(
            "cov(): expected input to have two or fewer dimensions but got an input with "
            f"{self.ndim} dimensions"
        )
    if self.dtype == torch.bool:
        raise RuntimeError("cov(): bool dtype is not supported for input")
    count = self.size(1) if self.ndim == 2 else self.numel()
    for name, weights, whole in (("fweights", fweights, True), ("aweights", aweights, False)):
        if weights is None:
            continue
        integral = not (weights.is_floating_point() or weights.is_complex())
        if weights.ndim > 1 or weights.numel() != count or integral != whole:
            raise RuntimeError(
                f"cov(): expected {name} to be {count} {'integers' if whole else 'floats'}, one "
                f"for each observation, but got {weights.dtype} of shape {list(weights.shape)}"
            )
        if count:
            _refuse(weights.min() < 0, RuntimeError(f"cov(): {name} cannot be negative"))


def assert_async(self: Tensor, assert_msg: str = _IS_ZERO) -> None:
    """Implements `torch._assert_async`, with which AOTAutograd's graphs check values."""
    assert_holds(self, assert_msg)


def assert_holds(self: Tensor, assert_msg: str = _IS_ZERO, always: bool = False) -> None:
    """Raise if a tensor of one element is zero; in a trace, `always` or if it checks values."""
    if active.trace is not None:
        _refuse(self == 0, RuntimeError(assert_msg), always)
    elif not self.cpu().item():
        raise RuntimeError(assert_msg)


def functional_assert_async(self: Tensor, assert_msg: str, dep_token: Tensor) -> Tensor:
    """Like `assert_async`, but returns a tensor that orders it with other operators."""
    assert_async(self, assert_msg)
    return dep_token.clone()


def install(aten: torch.library.Library) -> None:
    """Register `cov` above autograd, which differentiates its parts, and the assertions."""
    aten.impl("cov", untraced(cov), "AutogradPrivateUse1")
    for name in ("_assert_async", "_assert_async.msg"):
        aten.impl(name, untraced(assert_async), "PrivateUse1")
    aten.impl("_functional_assert_async.msg", untraced(functional_assert_async), "PrivateUse1")
