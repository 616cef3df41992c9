"""Kinds of tensors, compared in C++ by Dynamo's own guards."""

from collections.abc import Callable, Sequence

import torch

from calque.upstream import torch_c


def is_known() -> bool:
    """Returns True if PyTorch can compare the kinds of tensors."""
    return torch_c.TensorGuards is not None


def kinds_of(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Returns a function that compares as many tensors with the kinds of these, pair by pair.

    Compared are the class, dtype, device, shape, strides, lazy conjugation, whether a gradient is
    recorded for it, and what a call's dispatch keys tell: inference mode, autocast for the device,
    transformations of `torch.func`. And no two of them may be one tensor.
    """
    return torch_c.TensorGuards(
        *tensors,
        dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
        dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
    ).check
