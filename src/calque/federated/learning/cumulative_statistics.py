"""Batch norm with `momentum=None`, which averages over all batches, with a traced count."""

import functools
from typing import Any

import torch
from torch.nn import functional as F

from calque.upstream.torch_internals import BatchNorm


def count_in_tensors(module: torch.nn.Module) -> None:
    """Make batch norms without momentum count their batches with tensors, not Python numbers."""
    for part in module.modules():
        own = isinstance(part, BatchNorm) and type(part).forward is BatchNorm.forward
        if own and part.momentum is None and part.track_running_stats:
            part.forward = functools.partial(_normalized, part)


def _normalized(norm: Any, x: torch.Tensor) -> torch.Tensor:
    """Computes `BatchNorm.forward` and updates its buffers."""
    if not norm.training:
        return type(norm).forward(norm, x)
    norm._check_input_dim(x)
    mean, variance = torch.zeros_like(norm.running_mean), torch.zeros_like(norm.running_var)
    output = F.batch_norm(x, mean, variance, norm.weight, norm.bias, True, 1.0, norm.eps)
    with torch.no_grad():
        share = 1.0 / norm.num_batches_tracked.add_(1).to(mean.dtype)
        norm.running_mean.lerp_(mean, share)
        norm.running_var.lerp_(variance, share)
    return output
