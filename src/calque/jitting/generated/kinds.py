"""What tensors are: compared in C++, by what Dynamo compares them with."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # a release of PyTorch that has it elsewhere
    TensorGuards = None


def is_known() -> bool:
    """Whether PyTorch has what compares the kinds of tensors."""
    return TensorGuards is not None


def kinds_of(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """What tells of as many tensors whether they are of the kinds of these, pair by pair.

    Compared are the class, dtype, device, shape, strides, lazy conjugation, whether a gradient is
    recorded for it, and what a call's dispatch keys tell: inference mode, autocast for the device,
    transformations of `torch.func`. And no two of them may be one tensor.
    """
    guards: Any = TensorGuards
    return guards(
        *tensors,
        dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
        dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
    ).check
