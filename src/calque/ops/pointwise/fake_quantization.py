"""Fake quantization: floats rounded to the numbers that a quantized tensor could hold.

As PyTorch's CPU kernels do, the operators for a whole tensor clamp before they convert to integers,
and those for channels after, so that an infinity is the largest number for the former and the
smallest for the latter.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.table.helpers import cast, wrap_dim
from calque.ops.table.promotion import BOOL, COMPLEX, INT, is_integral, refuse, type_name
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import TensorArgument

_UNORDERED = "`quant_min` should be less than or         equal to `quant_max`."
_NOT_BETWEEN = "`zero_point` must be between `quant_min` and `quant_max`."
_INT64 = 2.0**63
_TENSOR_KERNEL = "fake_quantize_tensor_cachemask_kernel_type_handling"
_CHANNEL_KERNEL = "fake_quantize_channel_cachemask_cpu_type_handling"


def _check_order(least: int, most: int) -> None:
    if least > most:
        raise RuntimeError(_UNORDERED)


def _single(tensor: Any) -> Array:
    """Returns the number in a tensor of one element."""
    tensor = jnp.asarray(tensor)
    if tensor.size != 1:
        raise RuntimeError(f"a Tensor with {tensor.size} elements cannot be converted to Scalar")
    return tensor.reshape(())


def _wide(x: Array) -> Array:
    return x.astype(jnp.float32) if x.dtype.itemsize == 2 else x


def _positive_zero(x: Array) -> Array:
    return jnp.where(x == 0, 0.0, x)


def _by_tensor(
    self: Array, scale: Array, zero_point: Array, least: int, most: int
) -> tuple[Array, Array]:
    """Returns the fake quantized tensor, and where it was within the range."""
    _check_order(least, most)
    refuse(_TENSOR_KERNEL, self.dtype, BOOL, INT, COMPLEX)
    scale, x = scale.astype(jnp.float32), _wide(self)
    found = jnp.round(x * (1 / scale)) + zero_point.astype(x.dtype)
    mask = (found >= least) & (found <= most)
    held = jnp.where(jnp.isnan(found), least, jnp.clip(found, least, most)).astype(jnp.float32)
    out = (_positive_zero(held) - zero_point.astype(jnp.float32)) * scale
    return out.astype(self.dtype), mask


def _truncates(x: Array) -> Array:
    """Returns whole numbers as if they had been converted to int64, as floats."""
    return jnp.where((x >= -_INT64) & (x < _INT64), _positive_zero(x), -_INT64)


def _channel_zero_point_check(
    zero_point: TensorArgument, quant_min: int, quant_max: int, **_: Any
) -> None:
    _check_order(quant_min, quant_max)
    if not zero_point.is_float:
        zero_point.require_within(quant_min, quant_max + 1, lambda _: RuntimeError(_NOT_BETWEEN))


def _zero_point_check(given: dict[str, Any]) -> None:
    least, most, point = given["quant_min"], given["quant_max"], given["zero_point"]
    _check_order(least, most)
    if not hasattr(point, "shape") and not least <= point <= most:
        raise RuntimeError(_NOT_BETWEEN)


@op(
    "fake_quantize_per_tensor_affine_cachemask",
    dynamic=("scale", "zero_point"),
    check=_zero_point_check,
    layout="elementwise",
)
def fake_quantize_per_tensor_affine_cachemask(
    self: Array, scale: Any, zero_point: Any, quant_min: int, quant_max: int
) -> tuple[Array, Array]:
    scale, zero_point = jnp.asarray(scale), jnp.asarray(zero_point)
    return _by_tensor(self, scale, zero_point, quant_min, quant_max)


@op(
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    layout="elementwise",
    laid_by=(0,),
)
def fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
    self: Array,
    scale: Array,
    zero_point: Array,
    fake_quant_enabled: Array,
    quant_min: int,
    quant_max: int,
) -> tuple[Array, Array]:
    point = cast(_single(zero_point), np.dtype("int32"))
    out, mask = _by_tensor(self, _single(scale), point, quant_min, quant_max)
    enabled = _single(fake_quant_enabled) != 0
    return jnp.where(enabled, out, self), mask | ~enabled


def _check_channels(
    self: Any, scale: Any, zero_point: Any, axis: int, least: int, most: int
) -> None:
    if scale.dtype != jnp.float32 and scale.dtype != jnp.bfloat16:
        raise RuntimeError(f"Scale must be Float or BFloat16, found {type_name(scale.dtype)}")
    if scale.ndim != 1:
        raise RuntimeError("scale should be a 1-D tensor")
    if zero_point.ndim != 1:
        raise RuntimeError("zero point should be a 1-D tensor")
    if scale.size != zero_point.size:
        raise RuntimeError("scale and zero-point need to have the same dimensions")
    if scale.size != self.shape[wrap_dim(axis, self.ndim)]:
        raise RuntimeError(
            "dimensions of scale and zero-point are not consistent with input tensor"
        )
    _check_order(least, most)
    if axis < 0:
        raise RuntimeError("`axis` must be between 0 and number of dimensions of input")


def _along(values: Array, axis: int, ndim: int) -> Array:
    return values.reshape([values.size if a == axis else 1 for a in range(ndim)])


@op(
    "fake_quantize_per_channel_affine_cachemask",
    layout="elementwise",
    laid_by=(0,),
    values=_channel_zero_point_check,
)
def fake_quantize_per_channel_affine_cachemask(
    self: Array, scale: Array, zero_point: Array, axis: int, quant_min: int, quant_max: int
) -> tuple[Array, Array]:
    if zero_point.dtype not in (jnp.int32, jnp.float32, jnp.float16):
        found = type_name(zero_point.dtype)
        raise RuntimeError(f"Zero-point must be Int32, Float or Half, found {found}")
    _check_channels(self, scale, zero_point, axis, quant_min, quant_max)
    refuse(_CHANNEL_KERNEL, self.dtype, BOOL, INT, COMPLEX)
    x, scale = _wide(self), _along(scale.astype(jnp.float32), axis, self.ndim)
    point, inverse = _along(zero_point, axis, self.ndim), 1 / scale
    if is_integral(point.dtype):
        found = jnp.round(x * inverse) + point.astype(x.dtype)
    else:
        found = jnp.round(point.astype(x.dtype) + x * inverse)
    found = _truncates(found)
    held = jnp.clip(found, quant_min, quant_max)
    wide = self.dtype if self.dtype.itemsize == 8 or is_integral(point.dtype) else jnp.float64
    wide = jnp.promote_types(wide, jnp.float32)  # of whole numbers, float32 has every digit
    out = (held.astype(wide) - point.astype(wide)) * scale.astype(wide)
    return out.astype(self.dtype), (found >= quant_min) & (found <= quant_max)


# Learnable scales and zero points -----------------------------------------------------------------


def _first(tensor: Array) -> Array:
    if tensor.ndim == 0:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    return tensor.reshape(-1)[0].astype(jnp.float32)


def _point(zero_point: Array, least: int, most: int) -> Array:
    return jnp.clip(jnp.round(zero_point), least, most)


@op("_fake_quantize_learnable_per_tensor_affine", layout="elementwise", laid_by=(0,))
def fake_quantize_learnable_per_tensor_affine(
    self: Array,
    scale: Array,
    zero_point: Array,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Array:
    point = _point(_first(zero_point), quant_min, quant_max)
    return _by_tensor(self, _first(scale), point, quant_min, quant_max)[0]


@op("_fake_quantize_learnable_per_channel_affine", layout="elementwise", laid_by=(0,))
def fake_quantize_learnable_per_channel_affine(
    self: Array,
    scale: Array,
    zero_point: Array,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Array:
    point = _point(zero_point, quant_min, quant_max).astype(jnp.int32)
    return fake_quantize_per_channel_affine_cachemask(
        self, scale, point, axis, quant_min, quant_max
    )[0]


def _check_float(grad: Array, self: Array, scale: Array, zero_point: Array) -> None:
    tensors = {"dY": grad, "X": self, "scale": scale, "zero_point": zero_point}
    for name, tensor in tensors.items():
        if tensor.dtype != jnp.float32:
            raise RuntimeError(
                f"Expected {name}_.scalar_type() == ScalarType::Float to be true, but got false.  "
                "(Could this error message be improved?  If so, please report an enhancement "
                "request to PyTorch.)"
            )
    if grad.shape != self.shape:
        raise RuntimeError("`X` and `dY` are not the same size")


def _learned(
    grad: Array, self: Array, scale: Array, point: Array, bounds: tuple[int, int], factor: float
) -> tuple[Array, Array, Array]:
    """Returns the gradients of the input, and of scale and zero point before they are summed."""
    least, most = bounds
    inverse = 1 / scale
    found = _truncates(jnp.round(point + self * inverse))
    below, above = found < least, found > most
    outside = below | above
    limit = jnp.where(below, least - point, most - point)
    error = ((found - point) * scale - self) * inverse
    factor_grad = grad * factor
    of_scale = jnp.where(outside, grad * limit * factor, grad * error * factor)
    of_point = jnp.where(outside, -factor_grad * scale, 0)
    return jnp.where(outside, grad * 0, grad), of_scale, of_point


@op(
    "_fake_quantize_learnable_per_tensor_affine_backward",
    dynamic=("grad_factor",),
    layout="elementwise",
    laid_by=(1,),
)
def fake_quantize_learnable_per_tensor_affine_backward(
    grad: Array,
    self: Array,
    scale: Array,
    zero_point: Array,
    quant_min: int,
    quant_max: int,
    grad_factor: Any = 1.0,
) -> tuple[Array, Array, Array]:
    _check_float(grad, self, scale, zero_point)
    if not quant_min <= 0 <= quant_max:
        raise RuntimeError(f"{_UNORDERED[:-1]}, and the quantization range should include 0.")
    if self.size == 0:
        return self, scale, zero_point
    point = jnp.trunc(jnp.clip(_first(zero_point) + 0.5, quant_min, quant_max))
    factor = jnp.asarray(grad_factor, jnp.float32)
    bounds = quant_min, quant_max
    dx, ds, dz = _learned(grad, self, _first(scale), point, bounds, factor)
    return dx, ds.sum().reshape(1), dz.sum().reshape(1)


@op(
    "_fake_quantize_learnable_per_channel_affine_backward",
    dynamic=("grad_factor",),
    layout="elementwise",
    laid_by=(1,),
)
def fake_quantize_learnable_per_channel_affine_backward(
    grad: Array,
    self: Array,
    scale: Array,
    zero_point: Array,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: Any = 1.0,
) -> tuple[Array, Array, Array]:
    _check_float(grad, self, scale, zero_point)
    if not quant_min <= 0 <= quant_max:
        raise RuntimeError("Expecting `quant_min` <= 0 and `quant_max` >= 0")
    _check_channels(self, scale, zero_point, axis, quant_min, quant_max)
    if self.size == 0:
        return self, scale, zero_point
    point = _along(_point(zero_point, quant_min, quant_max), axis, self.ndim)
    factor = jnp.asarray(grad_factor, jnp.float32)
    bounds = quant_min, quant_max
    dx, ds, dz = _learned(grad, self, _along(scale, axis, self.ndim), point, bounds, factor)
    others = tuple(a for a in range(self.ndim) if a != axis)
    return dx, ds.sum(others), dz.sum(others)
