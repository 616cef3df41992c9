"""Pointwise arithmetic: one element in, one element out, with broadcasting and promotion."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from calque.ops.dtypes import is_complex, is_integral, promote, result_type, to_float
from calque.ops.registry import op

# Unary functions whose result has the dtype of the operand ------------------------------------

SAME_DTYPE = {
    "neg": jnp.negative,
    "conj_physical": jnp.conj,
    "positive": lambda x: x,
    "sign": jnp.sign,
    "bitwise_not": jnp.bitwise_not,
    "ceil": lambda x: x if is_integral(x.dtype) else jnp.ceil(x),
    "floor": lambda x: x if is_integral(x.dtype) else jnp.floor(x),
    "trunc": lambda x: x if is_integral(x.dtype) else jnp.trunc(x),
    "round": lambda x: x if is_integral(x.dtype) else jnp.round(x),
    "relu": lambda x: jnp.where(x <= 0, jnp.zeros((), x.dtype), x),
}

# Unary functions whose result is floating-point -------------------------------------------------

FLOAT = {
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log2": jnp.log2,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "sqrt": jnp.sqrt,
    "rsqrt": lax.rsqrt,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "erf": lax.erf,
    "reciprocal": lambda x: 1 / x,
}


def _unary_same(function: Any) -> Any:
    def rule(self: Array) -> Array:
        return function(self)

    return rule


def _unary_float(function: Any) -> Any:
    def rule(self: Array) -> Array:
        return function(self.astype(to_float(self.dtype)))

    return rule


for _name, _function in SAME_DTYPE.items():
    op(_name)(_unary_same(_function))
for _name, _function in FLOAT.items():
    op(_name)(_unary_float(_function))


@op("abs")
def abs(self: Array) -> Array:
    return jnp.abs(self)


# Arithmetic ---------------------------------------------------------------------------------------


@op("add.Tensor", "add.Scalar")
def add(self: Array, other: Any, alpha: Any = 1) -> Array:
    x, y = promote(self, other)
    if isinstance(alpha, int) and alpha == 1:
        return x | y if x.dtype == jnp.bool_ else x + y
    return x + y * jnp.asarray(alpha).astype(x.dtype)


@op("sub.Tensor", "sub.Scalar")
def sub(self: Array, other: Any, alpha: Any = 1) -> Array:
    x, y = promote(self, other)
    return x - y * jnp.asarray(alpha).astype(x.dtype)


@op("mul.Tensor", "mul.Scalar")
def mul(self: Array, other: Any) -> Array:
    x, y = promote(self, other)
    return x * y


@op("div.Tensor", "div.Scalar")
def div(self: Array, other: Any) -> Array:
    x, y = promote(self, other, floating=True)
    return x / y


@op("pow.Tensor_Scalar", static=("exponent",))
def pow_scalar(self: Array, exponent: Any) -> Array:
    dtype = result_type(self, exponent)
    if isinstance(exponent, int) or (isinstance(exponent, float) and exponent.is_integer()):
        if dtype != jnp.bool_ and abs_int(exponent) <= 64 and not is_complex(dtype):
            if not is_integral(dtype) or exponent >= 0:
                return lax.integer_pow(self.astype(dtype), int(exponent))
    return jnp.power(self.astype(dtype), jnp.asarray(exponent).astype(dtype))


def abs_int(value: Any) -> int:
    return -int(value) if value < 0 else int(value)


@op("where.self")
def where(condition: Array, self: Array, other: Array) -> Array:
    x, y = promote(self, other)
    return jnp.where(condition != 0, x, y)


@op("threshold_backward")
def threshold_backward(grad_output: Array, self: Array, threshold: Any) -> Array:
    return jnp.where(self <= threshold, jnp.zeros((), grad_output.dtype), grad_output)
