"""Simulated quantization (`torch.fake_quantize_per_tensor_affine`) in rounding and clamping."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor


def _whole(
    self: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    inverse = float(np.float32(1) / np.float32(scale))  # the kernel computes with float32
    return _rounded(self, scale, inverse, zero_point, (quant_min, quant_max))


def _rounded(
    x: Tensor, scale: Any, inverse: Any, zero_point: Any, limits: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Returns the result, and which elements are within the limits."""
    places = (x * inverse).round() + zero_point
    inside = (places >= limits[0]) & (places <= limits[1])
    return (places.clamp(*limits) - zero_point) * scale, inside


def _learned(
    self: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    fake_quant_enabled: Tensor,
    quant_min: int,
    quant_max: int,
) -> tuple[Tensor, Tensor]:
    zero = zero_point.to(self.dtype)
    found, inside = _rounded(self, scale, scale.reciprocal(), zero, (quant_min, quant_max))
    is_on = fake_quant_enabled != 0
    return torch.where(is_on, found, self), inside | ~is_on


def _by_channel(
    self: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    shape = [1] * self.dim()
    shape[axis] = -1
    wide, zero = scale.reshape(shape), zero_point.to(self.dtype).reshape(shape)
    return _rounded(self, wide, wide.reciprocal(), zero, (quant_min, quant_max))


_aten: Any = torch.ops.aten
QUANTIZATION: dict[Any, Callable[..., Any]] = {
    _aten.fake_quantize_per_tensor_affine_cachemask.default: _whole,
    _aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _learned,
    _aten.fake_quantize_per_channel_affine_cachemask.default: _by_channel,
}
