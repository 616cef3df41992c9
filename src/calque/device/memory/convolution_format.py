"""The memory format in which PyTorch's CPU kernels convolve.

A convolution along one axis is one of images of height 1. PyTorch makes the input contiguous
before, but not the kernel. Some of its implementations have no `channels_last` form.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from calque.device.memory import axis_order
from calque.device.memory.geometry import Ints
from calque.device.memory.wrapping import is_row_major
from calque.upstream import torch_c

_CPU = torch_c.DispatchKeySet(torch_c.DispatchKey.CPU)
_ROW_MAJOR_ONLY = frozenset(
    torch_c.ConvBackend.__members__[name]
    for name in (
        *("Slow3d", "SlowDilated3d", "SlowTranspose3d", "Empty"),
        *("NnpackSpatial", "Winograd3x3Depthwise", "Xnnpack2d"),
    )
)


def is_channels_last(input: torch.Tensor, weight: torch.Tensor, options: Sequence[Any]) -> bool:
    """Returns True if the results of a convolution, and its gradients, are `channels_last`.

    Args:
        input, weight: the operands.
        options: stride, padding, dilation, whether it is transposed, the padding of the output,
            and the number of groups.
    """
    if not _is_one(weight) and (input.ndim == 3 or not _is_one(input)):
        return False
    shapes = tuple(input.shape), tuple(weight.shape)
    given = tuple(tuple(v) if isinstance(v, list | tuple) else v for v in options)
    return _has_form(*shapes, input.dtype, given, torch_c.get_num_threads())


def strides(shape: Ints) -> Ints:
    """Returns the strides of a result in `channels_last`."""
    if len(shape) != 3:
        return axis_order.channels_last(shape)
    batch, channels, length = shape
    outer, channel, _, inner = axis_order.channels_last((batch, channels, 1, length))
    return (outer, channel, inner)


def _is_one(x: torch.Tensor) -> bool:
    if is_row_major(x):
        return False
    shape, stride = tuple(x.shape), x.stride()
    if len(shape) == 3:  # an axis of length 1 before the last
        shape, stride = _with_height(shape), (*stride[:2], shape[2] * stride[2], stride[2])
    return axis_order.lies_as_images(shape, stride)


@lru_cache(maxsize=1024)
def _has_form(shape: Ints, kernel: Ints, dtype: torch.dtype, options: Any, threads: int) -> bool:
    """Returns True if the implementation that PyTorch chooses has a `channels_last` form."""
    steps, padding, gaps, transposed, extra, groups = options
    if len(shape) == 3:
        shape, kernel = _with_height(shape), _with_height(kernel)
        steps, padding, gaps, extra = (1, *steps), (0, *padding), (1, *gaps), (0, *extra)
    places = (_place(shape, dtype), _place(kernel, dtype), None)
    chosen = torch_c.select_conv_backend(
        *places, steps, padding, gaps, transposed, extra, groups, None
    )
    return chosen not in _ROW_MAJOR_ONLY


def _with_height(shape: Ints) -> Ints:
    return (*shape[:2], 1, shape[2])


def _place(shape: Ints, dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor on the CPU of which all elements are one."""
    steps = (0,) * len(shape)
    return torch.ops.aten.empty_strided.default.redispatch(
        _CPU, shape, steps, dtype=dtype, device=torch.device("cpu")
    )
