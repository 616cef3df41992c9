"""Activation functions and their gradients.

The gradients are explicit instead of `jax.vjp`, because PyTorch picks a side at kinks.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from calque.ops.pointwise.rounding import at_least, at_most
from calque.ops.table.facts import facts, no_kernel, senseless
from calque.ops.table.helpers import wrap_dim
from calque.ops.table.number_range import Holds, HoldsLimits, saturated
from calque.ops.table.promotion import BOOL, COMPLEX, INT, RefusedDtype, opmath, refuse, type_name
from calque.ops.table.registry import op
from calque.ops.table.release import RELEASE
from calque.ops.table.tensor_argument import TensorArgument


def _zero(like: Array) -> Array:
    return jnp.zeros((), like.dtype)


def _vjp(function: Any, x: Array, grad: Array) -> Array:
    return jax.vjp(function, x)[1](grad)[0]


# Piecewise linear ---------------------------------------------------------------------------------


@op("relu")
def relu(self: Array) -> Array:
    if self.dtype == jnp.bool_:
        raise RefusedDtype("Boolean inputs not supported for relu")
    refuse("clamp_min_scalar_cpu", self.dtype, COMPLEX)
    return jnp.maximum(self, _zero(self))


@op(
    "threshold",
    refuses=no_kernel("threshold_cpu", BOOL, COMPLEX),
    writes_in_place=("fills",),
    numbers=Holds("threshold", "value"),
)
def threshold(self: Array, threshold: Any, value: Any) -> Array:
    return jnp.where(self <= threshold, jnp.asarray(value).astype(self.dtype), self)


@op("threshold_backward", laid_by=(1, 0))
def threshold_backward(grad_output: Array, self: Array, threshold: Any) -> Array:
    return jnp.where(self <= threshold, _zero(grad_output), grad_output)


_fit = HoldsLimits("min_val", "max_val")


def _limits(self: TensorArgument, min_val: Any = -1, max_val: Any = 1, **_: Any) -> None:
    wraps = self.dtype.kind == "u" and not RELEASE.limits_saturate
    if wraps and (min_val < 0 or max_val < 0):
        raise RuntimeError("cannot do hardtanh on an unsigned type with negative limits")
    if self.dtype != jnp.bool_:
        _fit(self=self, min_val=min_val, max_val=max_val)


@op(
    "hardtanh",
    writes=("exact_dtype",),
    numbers=_limits,
    refuses=senseless("clamp is not supported for complex types", COMPLEX),
)
def hardtanh(self: Array, min_val: Any = -1, max_val: Any = 1) -> Array:
    if self.dtype == jnp.bool_:
        raise RefusedDtype("Bool inputs not supported for hardtanh")
    limits = (saturated(bound, self.dtype) for bound in (min_val, max_val))
    low, high = (jnp.asarray(bound).astype(self.dtype) for bound in limits)
    return at_most(at_least(self, low), high)


@op("hardtanh_backward", layout="elementwise")
def hardtanh_backward(grad_output: Array, self: Array, min_val: Any, max_val: Any) -> Array:
    outside = (self <= min_val) | (self >= max_val)
    return jnp.where(outside, _zero(grad_output), grad_output)


@op(
    "leaky_relu",
    refuses=no_kernel("leaky_relu_cpu", BOOL, INT, COMPLEX),
    numbers=Holds("negative_slope"),
)
@opmath
def leaky_relu(self: Array, negative_slope: Any = 0.01) -> Array:
    return jnp.where(self > 0, self, self * negative_slope)


def _in_place(name: str, slope: Any, is_result: bool) -> None:
    """Raise if the result of an in-place call does not determine its input."""
    if is_result and isinstance(slope, int | float) and slope < 0:
        raise RuntimeError(
            f"In-place {name} backward calculation is triggered with a negative slope which is not "
            "supported. This is caused by calling in-place forward function with a negative slope, "
            "please call out-of-place version instead."
        )


def _leaky_slope(
    grad_output: Any, self: Any, negative_slope: Any, self_is_result: bool, **_: Any
) -> None:
    _in_place("leakyReLu", negative_slope, self_is_result)


@op("leaky_relu_backward", layout="elementwise", laid_by=(1, 0), numbers=_leaky_slope)
@opmath
def leaky_relu_backward(
    grad_output: Array, self: Array, negative_slope: Any, self_is_result: bool
) -> Array:
    return jnp.where(self > 0, grad_output, grad_output * negative_slope)


@op("_prelu_kernel", layout="elementwise")
def prelu(self: Array, weight: Array) -> Array:
    return jnp.where(self > 0, self, weight * self)


@op("_prelu_kernel_backward", layout="elementwise", laid_by=(1, 2, 0))
def prelu_backward(grad_output: Array, self: Array, weight: Array) -> tuple[Array, Array]:
    zero = _zero(grad_output)
    to_self = jnp.where(self > 0, grad_output, weight * grad_output)
    return to_self, jnp.where(self > 0, zero, self * grad_output)


@op(
    "hardshrink",
    writes=("exact_dtype",),
    refuses=no_kernel("hardshrink_cpu", BOOL, INT, COMPLEX),
    numbers=Holds("lambd"),
)
def hardshrink(self: Array, lambd: Any = 0.5) -> Array:
    return jnp.where(jnp.abs(self) <= lambd, _zero(self), self)


@op("hardshrink_backward", layout="elementwise")
def hardshrink_backward(grad_out: Array, self: Array, lambd: Any) -> Array:
    return jnp.where(jnp.abs(self) <= lambd, _zero(grad_out), grad_out)


def _threshold(self: TensorArgument, lambd: Any = 0.5, **_: Any) -> None:
    if not isinstance(lambd, int | float):
        return
    largest = float(jnp.finfo(self.dtype).max) if self.is_float else math.inf
    if not 0 <= lambd <= largest:
        raise RuntimeError(
            f"lambda must be in range [0, {largest:g}] for input dtype {type_name(self.dtype)}, "
            f"but found {lambd:g}"
        )


@op(
    "softshrink",
    writes=("exact_dtype",),
    refuses=no_kernel("softshrink_cpu", BOOL, INT, COMPLEX),
    numbers=_threshold,
)
@opmath
def softshrink(self: Array, lambd: Any = 0.5) -> Array:
    inside = self * 0  # keeps NaN
    lambd = lambd * 1  # of a bool
    return jnp.where(self > lambd, self - lambd, jnp.where(self < -lambd, self + lambd, inside))


@op("softshrink_backward", layout="elementwise")
def softshrink_backward(grad_output: Array, self: Array, lambd: Any) -> Array:
    return hardshrink_backward(grad_output, self, lambd)


@op("hardsigmoid")
@opmath
def hardsigmoid(self: Array) -> Array:
    refuse("hardsigmoid_cpu", self.dtype, BOOL, INT, COMPLEX)
    return jnp.clip(self + 3, 0, 6) / 6


@op("hardsigmoid_backward", layout="elementwise")
@opmath
def hardsigmoid_backward(grad_output: Array, self: Array) -> Array:
    return jnp.where((self > -3) & (self < 3), grad_output / 6, _zero(grad_output))


@op("hardswish", layout="elementwise")
@opmath
def hardswish(self: Array) -> Array:
    refuse("hardswish_cpu", self.dtype, BOOL, INT, COMPLEX)
    return self * jnp.clip(self + 3, 0, 6) / 6


@op("hardswish_backward", layout="elementwise")
@opmath
def hardswish_backward(grad_output: Array, self: Array) -> Array:
    middle = jnp.where(self < 3, grad_output * (self / 3 + 0.5), grad_output)
    return jnp.where(self <= -3, _zero(grad_output), middle)


@op(
    "rrelu_with_noise",
    mutates=("noise",),
    random=True,
    layout="row_major",
    refuses=no_kernel("leaky_relu_cpu", BOOL, INT, COMPLEX),
)
@opmath
def rrelu_with_noise(
    key: Array,
    self: Array,
    noise: Array,
    lower: Any = 0.125,
    upper: Any = 1 / 3,
    training: bool = False,
) -> tuple[Array, Array]:
    if not training:
        return leaky_relu(self, (lower + upper) / 2), noise
    drawn = jax.random.uniform(key, self.shape, self.dtype) * (upper - lower) + lower
    slope = jnp.where(self <= 0, drawn, 1).astype(self.dtype)
    return self * slope, slope.reshape(noise.shape)


# Smooth -------------------------------------------------------------------------------------------


@op("elu", numbers=Holds("alpha", "scale", "input_scale"))
@opmath
def elu(self: Array, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Array:
    refuse("elu_cpu", self.dtype, BOOL, INT, COMPLEX)
    negative = jnp.expm1(jnp.minimum(self, 0) * input_scale) * alpha * scale
    return jnp.where(self > 0, self * scale, negative).astype(self.dtype)


def _elu_slope(
    grad_output: Any, alpha: Any, scale: Any, input_scale: Any, is_result: bool, *_: Any, **__: Any
) -> None:
    _in_place("elu", alpha, is_result)


@op("elu_backward", layout="elementwise", numbers=_elu_slope)
@opmath
def elu_backward(
    grad_output: Array,
    alpha: Any,
    scale: Any,
    input_scale: Any,
    is_result: bool,
    self_or_result: Array,
) -> Array:
    x = self_or_result
    if is_result:
        slope = input_scale * (x + alpha * scale)
    else:
        slope = input_scale * alpha * scale * jnp.exp(jnp.minimum(x, 0) * input_scale)
    return (grad_output * jnp.where(x <= 0, slope, scale)).astype(grad_output.dtype)


@op("gelu", writes=("exact_dtype",))
@opmath
def gelu(self: Array, approximate: str = "none") -> Array:
    refuse("GeluKernelImpl", self.dtype, BOOL, INT, COMPLEX)
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (self + 0.044715 * self * self * self)
        return 0.5 * self * (1 + jnp.tanh(inner))
    if approximate != "none":
        raise RuntimeError("approximate argument must be either none or tanh.")
    return 0.5 * self * (1 + lax.erf(self * math.sqrt(0.5)))


@op("gelu_backward")
@opmath
def gelu_backward(grad_output: Array, self: Array, approximate: str = "none") -> Array:
    return _vjp(lambda x: gelu(x, approximate), self, grad_output)


@op("silu")
@opmath
def silu(self: Array) -> Array:
    refuse("silu_cpu", self.dtype, BOOL, INT)
    return self * jax.nn.sigmoid(self)


@op("silu_backward")
@opmath
def silu_backward(grad_output: Array, self: Array) -> Array:
    gate = jax.nn.sigmoid(self)
    return grad_output * jnp.conj(gate * (1 + self * (1 - gate)))


@op("mish")
@opmath
def mish(self: Array) -> Array:
    refuse("mish_cpu", self.dtype, BOOL, INT, COMPLEX)
    return self * jnp.tanh(_softplus(self))


@op("mish_backward", layout="elementwise")
@opmath
def mish_backward(grad_output: Array, self: Array) -> Array:
    return _vjp(mish, self, grad_output)


def _softplus(x: Array) -> Array:
    return jnp.logaddexp(x, jnp.zeros_like(x))


@op(
    "softplus",
    writes=("exact_dtype",),
    autocast="float32",
    numbers=Holds("beta", "threshold", like="self"),
)
@opmath
def softplus(self: Array, beta: Any = 1, threshold: Any = 20) -> Array:
    refuse("softplus_cpu", self.dtype, BOOL, INT, COMPLEX)
    scaled = self * beta
    return jnp.where(scaled > threshold, self, _softplus(scaled) / beta).astype(self.dtype)


@op("softplus_backward", layout="elementwise")
@opmath
def softplus_backward(grad_output: Array, self: Array, beta: Any, threshold: Any) -> Array:
    scaled = self * beta
    slope = jnp.where(scaled > threshold, 1, jax.nn.sigmoid(scaled))
    return (grad_output * slope).astype(grad_output.dtype)


@op("log_sigmoid_forward", layout="row_major", writes=("exact_dtype", "computes_first"))
@opmath
def log_sigmoid(self: Array) -> tuple[Array, Array]:
    """Returns the result, and the empty buffer that accelerators pass to the backward pass."""
    refuse("log_sigmoid_cpu", self.dtype, BOOL, INT, COMPLEX)
    return -_softplus(-self), jnp.zeros((0,), self.dtype)


@op("log_sigmoid_backward", layout="copied")
@opmath
def log_sigmoid_backward(grad_output: Array, self: Array, buffer: Array) -> Array:
    return grad_output * jax.nn.sigmoid(-self)


@op("sigmoid_backward")
@opmath
def sigmoid_backward(grad_output: Array, output: Array) -> Array:
    return grad_output * jnp.conj(output * (1 - output))


@op("tanh_backward")
@opmath
def tanh_backward(grad_output: Array, output: Array) -> Array:
    return grad_output * jnp.conj(1 - output * output)


@op("glu", layout="meta_if_strided")
@opmath
def glu(self: Array, dim: int = -1) -> Array:
    refuse("glu_cpu", self.dtype, BOOL, INT, COMPLEX)
    if self.ndim == 0:
        raise RuntimeError("glu does not support 0-dimensional tensors")
    dim = wrap_dim(dim, self.ndim)
    if self.shape[dim] % 2:
        raise RuntimeError(
            f"Halving dimension must be even, but dimension {dim} is size {self.shape[dim]}"
        )
    value, gate = jnp.split(self, 2, axis=dim)
    return value * jax.nn.sigmoid(gate)


@op("glu_backward")
@opmath
def glu_backward(grad_output: Array, self: Array, dim: int) -> Array:
    return _vjp(lambda x: glu(x, dim), self, grad_output)


facts("prelu", autocast="lower")
