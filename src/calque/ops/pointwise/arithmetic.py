"""Pointwise arithmetic: one element in, one element out, with broadcasting and promotion."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.ops.pointwise import complex_functions as of_complex
from calque.ops.pointwise.quotients import gcd, lcm
from calque.ops.table.facts import facts, no_kernel, senseless
from calque.ops.table.number_range import Holds
from calque.ops.table.promotion import (
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    RefusedDtype,
    check_factor,
    is_complex,
    is_float,
    is_integral,
    opmath,
    promote,
    refuse,
    result_type,
    to_float,
    type_name,
    wide_operands,
)
from calque.ops.table.registry import op

Unary = Callable[[Array], Array]


def _negative(x: Array) -> Array:
    if x.dtype == jnp.bool_:
        raise RefusedDtype(
            "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to "
            "invert a mask, use the `~` or `logical_not()` operator instead."
        )
    return jnp.negative(x)


def _sgn(x: Array) -> Array:
    if not is_complex(x.dtype):
        return _sign(x)
    return of_complex.sgn(x)


def _sign(x: Array) -> Array:
    if is_complex(x.dtype):
        raise RuntimeError(
            "Unlike NumPy, torch.sign doesn't support complex numbers. Use torch.sgn instead"
        )
    if is_float(x.dtype):
        return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)
    return x if x.dtype == jnp.bool_ else jnp.sign(x)


def _angle(x: Array) -> Array:
    if is_complex(x.dtype):
        return jnp.angle(x)
    pi = jnp.asarray(jnp.pi, x.dtype)
    return jnp.where(x < 0, pi, jnp.where(jnp.isnan(x), x, jnp.zeros((), x.dtype)))


# Unary functions whose result has the dtype of the operand ------------------------------------

SAME_DTYPE: dict[str, Unary] = {
    "neg": _negative,
    "conj_physical": jnp.conj,
    "sign": _sign,
    "sgn": _sgn,
    "abs": of_complex.size,
}

# Unary functions whose result is floating-point -------------------------------------------------

TO_FLOAT: dict[str, Unary] = {
    "exp": of_complex.exp,
    "exp2": of_complex.exp2,
    "expm1": of_complex.expm1,
    "log": of_complex.log,
    "log2": of_complex.log2,
    "log10": of_complex.log10,
    "log1p": of_complex.log1p,
    "sqrt": of_complex.sqrt,
    "rsqrt": of_complex.rsqrt,
    "sin": of_complex.sin,
    "cos": of_complex.cos,
    "tan": of_complex.tan,
    "sinh": of_complex.sinh,
    "cosh": of_complex.cosh,
    "tanh": of_complex.tanh,
    "asin": of_complex.asin,
    "acos": of_complex.acos,
    "atan": of_complex.atan,
    "asinh": of_complex.asinh,
    "acosh": of_complex.acosh,
    "atanh": of_complex.atanh,
    "sigmoid": opmath(of_complex.sigmoid),
    "reciprocal": of_complex.reciprocal,
    "deg2rad": opmath(lambda x: x * (jnp.pi / 180)),
    "rad2deg": opmath(lambda x: x * (180 / jnp.pi)),
    "angle": _angle,
}


def unary_same(function: Unary) -> Callable[..., Array]:
    """Returns the rule of a function whose result has the dtype of its operand."""

    def rule(self: Array) -> Array:
        return function(self)

    return rule


def unary_float(function: Unary) -> Callable[..., Array]:
    """Returns the rule of a float-valued function, which converts integers and bools to the default
    float."""

    def rule(self: Array) -> Array:
        return function(self.astype(to_float(self.dtype)))

    return rule


for _name, _function in SAME_DTYPE.items():
    op(_name)(unary_same(_function))
for _name, _function in TO_FLOAT.items():
    op(_name)(unary_float(_function))


# Sums and products --------------------------------------------------------------------------------


def _factor(alpha: Any, dtype: np.dtype) -> Any:
    """Returns alpha rounded to a dtype, None for 1; raises if PyTorch refuses its type."""
    if isinstance(alpha, int) and alpha == 1:
        return None
    check_factor("alpha", alpha, dtype)
    return jnp.asarray(alpha).astype(dtype)


def _scaled(y: Array, alpha: Any) -> Array:
    return y if alpha is None else y * alpha


@opmath
def _add(x: Array, y: Array, alpha: Any) -> Array:
    y = _scaled(y, alpha)
    return x | y if x.dtype == jnp.bool_ else x + y


@opmath
def _subtract(x: Array, y: Array, alpha: Any) -> Array:
    return x - _scaled(y, alpha)


def _refuse_bool_sub(*operands: Any) -> None:
    dtypes = [jnp.asarray(x).dtype for x in operands]
    if all(d == jnp.bool_ for d in dtypes):
        raise RefusedDtype(
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or "
            "`logical_xor()` operator instead."
        )
    if any(d == jnp.bool_ for d in dtypes):
        raise RefusedDtype(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying "
            "to invert a mask, use the `~` or `logical_not()` operator instead."
        )


@op("add.Tensor", "add.Scalar", numbers=Holds("alpha"))
def add(self: Array, other: Any, alpha: Any = 1) -> Array:
    x, y = promote(self, other)
    return _add(x, y, _factor(alpha, y.dtype))


@op("_add_relu.Tensor", "_add_relu.Scalar", layout="elementwise", numbers=Holds("alpha"))
def add_relu(self: Array, other: Any, alpha: Any = 1) -> Array:
    return jnp.maximum(add(self, other, alpha), 0)


@op("sub.Tensor", "sub.Scalar", numbers=Holds("alpha"))
def sub(self: Array, other: Any, alpha: Any = 1) -> Array:
    _refuse_bool_sub(self, other)
    x, y = promote(self, other)
    return _subtract(x, y, _factor(alpha, y.dtype))


@op("rsub.Tensor", "rsub.Scalar", numbers=Holds("alpha"))
def rsub(self: Array, other: Any, alpha: Any = 1) -> Array:
    return sub(other, self, alpha)


facts("rsub.Tensor", layout="elementwise", laid_by=(1, 0))


@op("mul.Tensor", "mul.Scalar")
def mul(self: Array, other: Any) -> Array:
    dtype = result_type(self, other)
    return jnp.multiply(*wide_operands(self, other, dtype)).astype(dtype)


@op("addcmul", autocast="widest", numbers=Holds("value"))
def addcmul(self: Array, tensor1: Array, tensor2: Array, value: Any = 1) -> Array:
    x, a, b = promote(self, tensor1, tensor2)
    refuse("addcmul_cpu_out", x.dtype, BOOL)
    return _add_scaled(x, lambda a, b: a * b, a, b, value)


@op("addcdiv", autocast="widest", numbers=Holds("value"))
def addcdiv(self: Array, tensor1: Array, tensor2: Array, value: Any = 1) -> Array:
    if is_integral(tensor1.dtype) and is_integral(tensor2.dtype):
        raise RuntimeError(
            "Integer division with addcdiv is no longer supported, and in a future  release "
            "addcdiv will perform a true division of tensor1 and tensor2."
        )
    x, a, b = promote(self, tensor1, tensor2)
    return _add_scaled(x, lambda a, b: a / b, a, b, value)


def _add_scaled(x: Array, function: Any, a: Array, b: Array, value: Any) -> Array:
    if isinstance(value, int) and value == 1:
        return opmath(lambda x, a, b: x + function(a, b))(x, a, b)
    return opmath(lambda x, a, b: x + jnp.asarray(value).astype(x.dtype) * function(a, b))(x, a, b)


@op("lerp.Scalar", numbers=Holds("weight"))
def lerp(self: Array, end: Array, weight: Any) -> Array:
    _check_lerp(self.dtype, end=end)
    return opmath(_between)(self, end, weight)


def _between(start: Array, end: Array, weight: Any) -> Array:
    weight = jnp.asarray(weight).astype(start.dtype)
    step = end - start
    return jnp.where(jnp.abs(weight) < 0.5, start + weight * step, end - step * (1 - weight))


@op("lerp.Tensor")
def lerp_tensor(self: Array, end: Array, weight: Array) -> Array:
    _check_lerp(self.dtype, end=end, **({"weight": weight} if weight.ndim else {}))
    dtype = result_type(self, weight)  # a weight without dimensions may change it
    return lerp(*(x.astype(dtype) for x in (self, end, weight)))


def _check_lerp(dtype: Any, **others: Array) -> None:
    for name, other in others.items():
        if not other.weak_type and other.dtype != dtype:
            found, wanted = type_name(other.dtype), type_name(dtype)
            raise RuntimeError(f"expected dtype {wanted} for `{name}` but got dtype {found}")
    refuse("lerp_kernel_scalar", dtype, BOOL, INT)


# Other functions of two operands ------------------------------------------------------------------


def _xlog(log: Unary, kernel: str) -> Callable[[Array, Array], Array]:
    def function(x: Array, y: Array) -> Array:
        refuse(kernel, x.dtype, COMPLEX)
        return jnp.where(jnp.isnan(y), y, jnp.where(x == 0, jnp.zeros_like(x), x * log(y)))

    return function


def _heaviside(x: Array, y: Array) -> Array:
    return jnp.where(x == 0, y, (x > 0).astype(x.dtype))


def _atan2(x: Array, y: Array) -> Array:
    return lax.atan2(*jnp.broadcast_arrays(x, y))


def complex_logaddexp(x: Array, y: Array) -> Array:
    """Returns log(exp(x) + exp(y)), on the branch of the operand with the larger real part."""
    low = jnp.where(x.real < y.real, x, y)
    high = jnp.where(x.real < y.real, y, x)
    total = high + jnp.log1p(jnp.exp(low - high))
    return jnp.where(jnp.isneginf(low.real), high, total)


def _logaddexp(x: Array, y: Array) -> Array:
    return complex_logaddexp(x, y) if is_complex(x.dtype) else jnp.logaddexp(x, y)


def _extreme(function: Any) -> Any:
    def refused(x: Array, y: Array) -> Array:
        refuse("maximum", x.dtype, COMPLEX)
        return function(x, y)

    return refused


BINARY_SAME: dict[str, Callable[..., Array]] = {
    "maximum": _extreme(jnp.maximum),
    "minimum": _extreme(jnp.minimum),
    "fmax": _extreme(jnp.fmax),
    "fmin": _extreme(jnp.fmin),
    "gcd": gcd,
    "lcm": lcm,
    "heaviside": _heaviside,
    "hypot": opmath(jnp.hypot),
    "nextafter": jnp.nextafter,
    "logaddexp": opmath(_logaddexp),
    "logaddexp2": opmath(jnp.logaddexp2),
}
BINARY_FLOAT: dict[str, Callable[..., Array]] = {
    "atan2": _atan2,
    "copysign.Tensor": jnp.copysign,
    "copysign.Scalar": jnp.copysign,
    "xlogy.Tensor": opmath(_xlog(jnp.log, "xlogy_cpu")),
    "xlogy.Scalar_Self": opmath(_xlog(jnp.log, "xlogy_cpu")),
    "xlogy.Scalar_Other": opmath(_xlog(jnp.log, "xlogy_cpu")),
    "special_xlog1py": opmath(_xlog(jnp.log1p, "xlog1py_cpu")),
    "special_xlog1py.self_scalar": opmath(_xlog(jnp.log1p, "xlog1py_cpu")),
    "special_xlog1py.other_scalar": opmath(_xlog(jnp.log1p, "xlog1py_cpu")),
}


def binary(function: Any, floating: bool = False) -> Callable[..., Array]:
    """Returns the rule of a function of two promoted operands."""

    def rule(self: Any, other: Any) -> Array:
        return function(*promote(self, other, floating=floating))

    return rule


def _binary_heaviside(self: Array, values: Array) -> Array:
    if self.dtype != values.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")
    return _heaviside(self, values)


for _name, _function in BINARY_SAME.items():
    op(_name)(_binary_heaviside if _name == "heaviside" else binary(_function))
for _name, _function in BINARY_FLOAT.items():
    op(_name)(binary(_function, floating=True))


@op("where.self", writes=("exact_dtype",))
def where(condition: Array, self: Array, other: Array) -> Array:
    if condition.dtype not in (jnp.bool_, jnp.uint8):
        raise RuntimeError(
            "where expected condition to be a boolean tensor, but got a tensor with dtype "
            f"{type_name(condition.dtype)}"
        )
    x, y = promote(self, other)
    return jnp.where(condition != 0, x, y)


facts("acos asin cosh exp expm1 log log10 log1p log2 reciprocal rsqrt sinh tan", autocast="float32")
facts("abs", writes_in_place=("no_complex",), refuses=no_kernel("abs_cpu", BOOL))
facts("angle", layout="reals")
facts("atan2", autocast="widest", refuses=no_kernel("atan2_cpu", COMPLEX, pair=True))
facts("abs", writes=("exact_dtype", "sizes"))
facts("conj_physical neg sgn", writes=("exact_dtype",))
facts("copysign.Scalar copysign.Tensor", refuses=no_kernel("copysign_cpu", COMPLEX, pair=True))
facts("deg2rad", refuses=senseless("deg2rad is not supported for complex tensors.", COMPLEX))
facts("digamma", refuses=no_kernel("digamma", COMPLEX))
facts("erf", refuses=no_kernel("erf_vml_cpu", COMPLEX))
facts("erfc", refuses=no_kernel("erfc_vml_cpu", COMPLEX))
facts("erfinv", autocast="float32", refuses=no_kernel("erfinv_vml_cpu", COMPLEX))
facts("fmax", refuses=senseless("fmax not implemented for complex tensors.", COMPLEX))
facts("fmin", refuses=senseless("fmin not implemented for complex tensors.", COMPLEX))
facts("gcd", refuses=no_kernel("gcd_cpu", FLOAT, COMPLEX, pair=True))
facts(
    "heaviside",
    writes=("exact_dtype",),
    refuses=senseless("heaviside is not yet implemented for complex tensors.", COMPLEX),
)
facts("hypot", refuses=no_kernel("hypot_cpu", BOOL, INT, COMPLEX, pair=True))
facts("lcm", refuses=no_kernel("lcm_cpu", FLOAT, COMPLEX, pair=True))
facts("lgamma", refuses=no_kernel("lgamma_vml_cpu", COMPLEX))
facts("logaddexp", refuses=no_kernel("logaddexp_cpu", BOOL, INT, pair=True))
facts("logaddexp2", refuses=no_kernel("logaddexp2_cpu", BOOL, INT, COMPLEX, pair=True))
facts("maximum", refuses=senseless("maximum not implemented for complex tensors.", COMPLEX))
facts("minimum", refuses=senseless("minimum not implemented for complex tensors.", COMPLEX))
facts("nextafter", refuses=no_kernel("nextafter_cpu", BOOL, INT, COMPLEX, pair=True))
facts("rad2deg", refuses=senseless("rad2deg is not supported for complex tensors.", COMPLEX))
facts("sign", writes=("exact_dtype",), refuses=no_kernel("sign_cpu (use torch.sgn)", COMPLEX))
facts(
    "xlogy.Scalar_Other xlogy.Scalar_Self xlogy.Tensor",
    refuses=no_kernel("xlogy_cpu", COMPLEX, pair=True),
)
