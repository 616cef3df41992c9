"""Rounding, clamping, and splitting numbers into parts."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.table.facts import facts, no_kernel
from calque.ops.table.helpers import constant
from calque.ops.table.number_range import Holds, HoldsLimits, saturated
from calque.ops.table.promotion import (
    BOOL,
    COMPLEX,
    INT,
    is_complex,
    is_float,
    is_integral,
    opmath,
    promote,
    refuse,
    result_type,
    to_float,
)
from calque.ops.table.registry import op

ROUND: dict[str, Callable[..., Array]] = {
    "ceil": jnp.ceil,
    "floor": jnp.floor,
    "trunc": jnp.trunc,
    "round": jnp.round,
}


def _rounding(name: str, function: Any) -> Any:
    def rule(self: Array) -> Array:
        refuse(f"{name}_vml_cpu", self.dtype, BOOL, COMPLEX)
        return self if is_integral(self.dtype) else function(self)

    return rule


for _name, _function in ROUND.items():
    op(_name)(_rounding(_name, _function))


@op(
    "round.decimals",
    writes=("exact_dtype",),
    refuses=no_kernel("round_cpu", BOOL, INT, COMPLEX),
)
@opmath
def round_decimals(self: Array, decimals: int) -> Array:
    if decimals >= 0:
        return jnp.round(self * 10.0**decimals) / 10.0**decimals
    return jnp.round(self / 10.0**-decimals) * 10.0**-decimals


@op("frac", writes=("exact_dtype",), refuses=no_kernel("frac_cpu", BOOL, INT, COMPLEX))
def frac(self: Array) -> Array:
    refuse("frac", self.dtype, BOOL, COMPLEX)
    return jnp.zeros_like(self) if is_integral(self.dtype) else self - jnp.trunc(self)


@op("frexp.Tensor", writes=("exact_dtype",))
def frexp(self: Array) -> tuple[Array, Array]:
    if not is_float(self.dtype):
        raise RuntimeError("torch.frexp() only supports floating-point dtypes")
    wide = self.astype(jnp.float32) if self.dtype.itemsize == 2 else self
    mantissa, exponent = jnp.frexp(wide)
    return mantissa.astype(self.dtype), exponent.astype(jnp.int32)


def at_least(x: Array, low: Array) -> Array:
    """Returns the larger number; x where they are equal, because zeros differ in their signs."""
    if low.ndim or not is_float(x.dtype):
        return jnp.maximum(x, low)
    return jnp.where((x < low) | jnp.isnan(low), low, x)


def at_most(x: Array, high: Array) -> Array:
    """Like `at_least`, but the smaller number."""
    if high.ndim or not is_float(x.dtype):
        return jnp.minimum(x, high)
    return jnp.where((x > high) | jnp.isnan(high), high, x)


def _limited(self: Array, min: Any, max: Any, kind: str = "") -> Array:
    if min is None and max is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    bounds = [x for x in (min, max) if x is not None]
    dtype = result_type(self, *bounds)
    x, *bounds = promote(self, *(saturated(limit, dtype) for limit in bounds))
    refuse("clamp", x.dtype, COMPLEX)
    if kind or len(bounds) == 2:  # PyTorch clamps booleans only by a single tensor
        which = "" if len(bounds) == 2 else "max_" if min is None else "min_"
        refuse(f"clamp_{which}{kind}cpu", x.dtype, BOOL)
    if min is not None:
        x = at_least(x, bounds.pop(0))
    return x if max is None else at_most(x, bounds.pop(0))


@op("clamp", numbers=HoldsLimits("min", "max", operands=True), writes=("exact_dtype",))
def clamp(self: Array, min: Any = None, max: Any = None) -> Array:
    return _limited(self, min, max, "scalar_")


@op("clamp.Tensor", numbers=HoldsLimits("min", "max", operands=True))
def clamp_by_tensors(self: Array, min: Any = None, max: Any = None) -> Array:
    return _limited(self, min, max)


@op("clamp_min", numbers=HoldsLimits("min", operands=True), writes=("exact_dtype",))
def clamp_min(self: Array, min: Any) -> Array:
    return _limited(self, min, None, "scalar_")


@op("clamp_min.Tensor", numbers=HoldsLimits("min", operands=True))
def clamp_min_by_tensor(self: Array, min: Any) -> Array:
    return _limited(self, min, None)


@op("clamp_max", numbers=HoldsLimits("max", operands=True), writes=("exact_dtype",))
def clamp_max(self: Array, max: Any) -> Array:
    return _limited(self, None, max, "scalar_")


@op("clamp_max.Tensor", numbers=HoldsLimits("max", operands=True))
def clamp_max_by_tensor(self: Array, max: Any) -> Array:
    return _limited(self, None, max)


@op("nan_to_num", writes=("exact_dtype",))
def nan_to_num(
    self: Array, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Array:
    if is_complex(self.dtype):
        parts = [nan_to_num(part, nan, posinf, neginf) for part in (self.real, self.imag)]
        return parts[0] + 1j * parts[1]
    if is_integral(self.dtype):
        return self
    limits = jnp.finfo(self.dtype)
    nan, posinf, neginf = (
        constant(default if given is None else given, self.dtype)
        for given, default in ((nan, 0.0), (posinf, limits.max), (neginf, limits.min))
    )
    high, low = self == np.inf, self == -np.inf
    return jnp.where(jnp.isnan(self), nan, jnp.where(high, posinf, jnp.where(low, neginf, self)))


@op(
    "logit",
    static=("eps",),
    refuses=no_kernel("logit_cpu", COMPLEX),
    numbers=Holds("eps", like="self"),
)
def logit(self: Array, eps: float | None = None) -> Array:
    x = self.astype(to_float(self.dtype))
    if eps is not None:  # above a half, where the limits cross, the lower one has priority
        low, high = _logit_limits(eps, x.dtype)
        x = jnp.where(x < low, low, jnp.where(x > high, high, x))
    return opmath(lambda x: jnp.log(x / (1 - x)))(x)


def _logit_limits(eps: Any, dtype: np.dtype) -> tuple[Any, Any]:
    """Returns the limits that PyTorch computes in the dtype of the tensor."""
    low = constant(eps, dtype)
    return low, np.asarray(1, dtype) - low


@op("logit_backward", static=("eps",))
def logit_backward(grad_output: Array, self: Array, eps: float | None = None) -> Array:
    limited = eps is not None and not eps < 0
    low, high = _logit_limits(eps if limited else 0.0, self.dtype)

    @opmath
    def inside(grad: Array, x: Array) -> Array:
        slope = x * (1 - x)
        return grad / jnp.where(slope == 0, 0, slope)  # without the sign of a zero

    outside = jnp.asarray(0.0 if limited else jnp.nan, grad_output.dtype)
    return jnp.where((self < low) | (self > high), outside, inside(grad_output, self))


facts("ceil floor round trunc", writes=("exact_dtype",))
