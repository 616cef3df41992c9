"""Kinds of tensors, compared in C++ by dynamo's guards."""

from collections.abc import Callable, Sequence

import torch

from calque.upstream import torch_c


def is_known() -> bool:
    """Returns True if PyTorch can compare the kinds of tensors."""
    return torch_c.TensorGuards is not None


def kinds_of(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Returns a function that compares the same number of tensors with the kinds of these.

    It compares the class, dtype, device, shape, strides, lazy conjugation, requires_grad, and what
    the dispatch keys show: inference mode, autocast for the device, and `torch.func` transforms.
    The tensors must be distinct.
    """
    return torch_c.TensorGuards(
        *tensors,
        dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
        dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
    ).check
