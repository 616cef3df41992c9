"""Fake quantization with a scale and zero point from a moving average of the extrema."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.pointwise.fake_quantization import (
    fake_quantize_per_channel_affine_cachemask,
    fake_quantize_per_tensor_affine_cachemask_tensor_qparams,
)
from calque.ops.table.helpers import cast, maximum, minimum
from calque.ops.table.promotion import type_name
from calque.ops.table.registry import op

_SMALLEST_SCALE = float(np.float32(6.1e-5))


def _scale_and_point(
    low: Array, high: Array, least: int, most: int, symmetric: bool
) -> tuple[Array, Array]:
    """Returns the scale and zero point for an interval, as PyTorch's `ChooseQuantizationParams`."""
    single, double = jnp.float32, jnp.float64
    steps, both = most - least, (low < 0) & (high > 0)
    if symmetric:
        lowest, highest = -(steps // 2 + 1), steps // 2
        widest = jnp.maximum(low.astype(double) / lowest, high.astype(double) / highest)
        widest = widest.astype(single).astype(double)  # XLA divides by multiplying
        low = jnp.where(both, (widest * lowest).astype(single), low)
        high = jnp.where(both, (widest * highest).astype(single), high)
    low, high = jnp.where(low > 0, 0, low), jnp.where(high < 0, 0, high)
    scale = (high.astype(double) - low.astype(double)) / steps
    inverse = 1 / scale.astype(single)
    scale = jnp.where((scale.astype(single) == 0) | jnp.isinf(inverse), 0.1, scale)
    small = scale < _SMALLEST_SCALE
    factor = np.float32(_SMALLEST_SCALE) / scale.astype(single)
    reach = np.float32(_SMALLEST_SCALE * steps)
    new_low = jnp.where(low == 0, low, jnp.where(high == 0, -reach, low * factor))
    new_high = jnp.where(low == 0, reach, jnp.where(high == 0, high, high * factor))
    low = jnp.where(small, new_low, low).astype(double)
    high = jnp.where(small, new_high, high).astype(double)
    scale = jnp.where(small, _SMALLEST_SCALE, scale)
    from_low, from_high = least - low / scale, most - high / scale
    nearer = abs(least) - jnp.abs(low / scale) < abs(most) - jnp.abs(high / scale)
    point = jnp.where(nearer, from_low, from_high)
    if symmetric:
        point = jnp.where((low < 0) & (high > 0), (least + most) / 2, point)
    point = jnp.where(point < least, least, jnp.where(point > most, most, jnp.round(point)))
    return scale.astype(single), cast(point, np.dtype("int32"))


def _condition(self: Any, *rest: Any, **named: Any) -> None:
    axis = named["ch_axis"] if "ch_axis" in named else rest[9]
    channels = named.get("per_row_fake_quant", rest[10] if len(rest) > 10 else False)
    if axis >= self.ndim:
        raise RuntimeError(
            "Error in fused_moving_avg_obs_fake_quant_cpu: ch_axis must be < self.dim()"
        )
    if channels and axis != 0:
        raise RuntimeError(
            "Per-channel FakeQuant in fused_moving_avg_obs_fake_quant is only supported on "
            "axis == 0"
        )


def _observed(
    self: Array, low: Array, high: Array, on: Array, weight: Any, axes: Any
) -> tuple[Array, Array]:
    """Returns the new moving averages of the minimum and maximum; infinite ones are replaced."""
    if self.size == 0:
        raise RuntimeError(
            "aminmax(): cannot compute aminmax over an empty dimension as the operation has no "
            "identity."
        )
    weight = jnp.asarray(weight, jnp.float32)
    new = []
    for old, found in ((low, minimum(self, axes)), (high, maximum(self, axes))):
        found = found.reshape(old.shape)
        moved = jnp.where(jnp.isinf(old), found, old + weight * (found - old))
        new.append(jnp.where(on, moved, old))
    return new[0], new[1]


@op(
    "_fused_moving_avg_obs_fq_helper_functional",
    dynamic=("averaging_const",),
    layout="elementwise",
    laid_by=(0,),
    condition=_condition,
)
@op(
    "_fused_moving_avg_obs_fq_helper",
    mutates=("running_min", "running_max", "scale", "zero_point"),
    dynamic=("averaging_const",),
    layout="elementwise",
    laid_by=(0,),
    condition=_condition,
)
def fused_moving_avg_obs_fq_helper(
    self: Array,
    observer_on: Array,
    fake_quant_on: Array,
    running_min: Array,
    running_max: Array,
    scale: Array,
    zero_point: Array,
    averaging_const: Any,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[Any, ...]:
    if self.dtype != jnp.float32:
        raise RuntimeError(f"expected scalar type Float but found {type_name(self.dtype)}")
    on, quantizes = observer_on.reshape(()) != 0, fake_quant_on.reshape(()) != 0
    if per_row_fake_quant and running_min.size == 0:
        rows = self.shape[0]
        running_min = jnp.full(rows, jnp.inf, running_min.dtype)
        running_max = jnp.full(rows, -jnp.inf, running_max.dtype)
        scale, zero_point = jnp.ones(rows, scale.dtype), jnp.zeros(rows, zero_point.dtype)
    axes = tuple(range(1, self.ndim)) if per_row_fake_quant else None
    low, high = _observed(self, running_min, running_max, on, averaging_const, axes)
    found, point = _scale_and_point(low, high, quant_min, quant_max, symmetric_quant)
    scale = jnp.where(quantizes, found.reshape(scale.shape), scale)
    zero_point = jnp.where(quantizes, point.reshape(zero_point.shape), zero_point)
    zero_point = zero_point.astype(point.dtype) if per_row_fake_quant else zero_point
    if per_row_fake_quant:
        out, mask = fake_quantize_per_channel_affine_cachemask(
            self, scale, zero_point, 0, quant_min, quant_max
        )
        out, mask = jnp.where(quantizes, out, self), mask | ~quantizes
    else:
        out, mask = fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
            self, scale, zero_point, fake_quant_on, quant_min, quant_max
        )
    return out, mask, low, high, scale, zero_point
