"""What PyTorch computes a convolution and attention with on the CPU, which decides how results lie.

A convolution along one axis is one of images of height 1. PyTorch makes the input contiguous
before, but not the kernel. Some of its implementations have no `channels_last` form. Of attention,
only the fused kernel keeps the order of the query's axes.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.nn.attention import SDPBackend

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


def is_fused(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Returns True if PyTorch calls its fused kernel for some arguments of
    `scaled_dot_product_attention`, without a gradient.
    """
    named = dict(zip(("scale", "enable_gqa"), args[6:], strict=False)) | kwargs
    operands = tuple(map(_described, args[:6]))
    options = tuple((name, _described(value)) for name, value in named.items())
    return _is_fused(operands, options, torch_c.get_flash_sdp_enabled())


def strides_in_channels_last(shape: Ints) -> Ints:
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
    operands = [_place(size, (0,) * len(size), dtype) for size in (shape, kernel)]
    chosen = torch_c.select_conv_backend(
        *operands, None, steps, padding, gaps, transposed, extra, groups, None
    )
    return chosen not in _ROW_MAJOR_ONLY


def _with_height(shape: Ints) -> Ints:
    return (*shape[:2], 1, shape[2])


class _Described(NamedTuple):
    """What the choice of a kernel for attention depends on."""

    shape: Ints
    inner: int  # 1 if the last axis is contiguous
    dtype: torch.dtype


def _described(value: object) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    return _Described(tuple(value.shape), 1 if value.stride(-1) == 1 else 2, value.dtype)


@lru_cache(maxsize=1024)
def _is_fused(operands: tuple[Any, ...], options: tuple[tuple[str, Any], ...], flash: bool) -> bool:
    given = [_undescribed(value) for value in operands]
    named = {name: _undescribed(value) for name, value in options}
    choice = torch.ops.aten._fused_sdp_choice.default.redispatch(_CPU, *given, **named)
    return choice == SDPBackend.FLASH_ATTENTION.value


def _undescribed(value: object) -> object:
    if not isinstance(value, _Described):
        return value
    stride = (*[0] * (len(value.shape) - 1), value.inner)
    return _place(value.shape, stride, value.dtype)


def _place(shape: Ints, stride: Ints, dtype: torch.dtype) -> torch.Tensor:
    return torch.ops.aten.empty_strided.default.redispatch(
        _CPU, shape, stride, dtype=dtype, device=torch.device("cpu")
    )
