"""Operators that need a different form in a graph without writes.

They write without declaring it in their schema, draw in a different order than at run time, or lack
the gradient of the call that they replace.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from calque.tracing.lowering import composites
from calque.tracing.lowering.writes import copy_unseen
from calque.upstream import torch_c


def copied(self: Tensor, src: Tensor, non_blocking: bool = False) -> Any:
    """Replaces `aten.copy`, the functional form of `x.copy_(y)`, which has no gradient."""
    if not torch_c.is_grad_enabled() or not (self.is_floating_point() or self.is_complex()):
        return NotImplemented
    if (src.dtype, src.device) != (self.dtype, self.device):
        src = src.to(dtype=self.dtype, device=self.device)
    src = src if src.shape == self.shape else src.expand(self.shape)
    if src.stride() == self.stride() or not (self.dim() and _is_dense(self)):
        return src.clone()
    if self.is_complex():  # for which `slice_scatter` has no gradient
        pairs = torch.view_as_real(self.resolve_conj()), torch.view_as_real(src.resolve_conj())
        return torch.view_as_complex(torch.ops.aten.slice_scatter.default(*pairs))
    return torch.ops.aten.slice_scatter.default(self, src)


def _is_dense(tensor: Tensor) -> bool:
    """Returns True if a tensor fills a contiguous block of memory without overlap."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: Any, momentum: Any, eps: Any
) -> Any:
    if not training or mean is None:
        return NotImplemented
    run = torch.ops.aten._native_batch_norm_legit_functional.default
    # Copies, because autograd saves these for the backward pass, and they are written to below.
    old = mean.clone(), var.clone()
    *results, new_mean, new_var = run(x, weight, bias, *old, training, momentum, eps)
    copy_unseen(mean, new_mean)
    copy_unseen(var, new_var)
    return tuple(results)


def _rrelu(
    x: Tensor, noise: Tensor, lower: Any = 1 / 8, upper: Any = 1 / 3, training: bool = False
) -> Any:
    """Multiplies by the slopes that are drawn; autograd of the form without writes would multiply
    by what was in `noise` before.
    """
    if not training or _drawing.get():
        return NotImplemented
    token = _drawing.set(True)
    try:
        run = torch.ops.aten.rrelu_with_noise_functional.default
        slopes = run(x.detach(), noise, lower, upper, training)[1]
    finally:
        _drawing.reset(token)
    return x * slopes, slopes


_drawing = ContextVar("_drawing", default=False)
"""Whether the operator in `_rrelu` runs, which would otherwise be replaced as well."""


FUNCTIONAL: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.native_batch_norm.default: _batch_norm,
    torch.ops.aten.bernoulli.p: composites.bernoulli,
    torch.ops.aten.copy.default: copied,
    torch.ops.aten.rrelu_with_noise_functional.default: _rrelu,
}

FILLED_AT_RANDOM = (torch.ops.aten.normal_functional.default, torch.ops.aten.bernoulli.p)
"""Forms of operators that fill a tensor, which have no gradient for what was in it."""

IN_PLACE = {
    f"{mark}i{word}{mark}": f"bitwise_{word}_"
    for word in ("and", "or", "xor")
    for mark in ("__", "")
}
"""The methods for operators that functionalization knows only by these names."""
