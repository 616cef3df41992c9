"""Quotients, remainders and powers."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.ops.pointwise import complex_functions as of_complex
from calque.ops.table.facts import facts
from calque.ops.table.helpers import constant
from calque.ops.table.number_range import Holds
from calque.ops.table.promotion import (
    BOOL,
    COMPLEX,
    is_complex,
    is_float,
    is_integral,
    opmath,
    promote,
    refuse,
    result_type,
    to_float,
    wide_operands,
)
from calque.ops.table.registry import op


def _divides(self: Any, other: Any, **_: Any) -> None:
    """Raise an error for integer division by zero, waiting for the divisor."""
    if not (_integral(self) and _integral(other)):
        return
    if isinstance(other, int):
        if other == 0:
            raise _zero_division(other)
    else:
        other.require(lambda divisor: divisor != 0, _zero_division, wait=True)


def _divides_by_number(self: Any, other: Any, **_: Any) -> None:
    """Raise an error for integer division by the number zero."""
    if _integral(self) and _integral(other):
        if (other if isinstance(other, int) else other.number) == 0:
            raise _zero_division(other)


def _divides_rounded_by_number(
    self: Any, other: Any, rounding_mode: str | None = None, **_: Any
) -> None:
    if rounding_mode is not None:
        _divides_by_number(self, other)


def _integral(x: Any) -> bool:
    """Returns True if an operand has integers and is not empty."""
    if isinstance(x, int | float | complex):
        return isinstance(x, int)
    return hasattr(x, "is_float") and not x.is_float and bool(x.size) and is_integral(x.dtype)


def _zero_division(divisor: Any) -> Exception:
    return RuntimeError("ZeroDivisionError")


def _divides_rounded(self: Any, other: Any, rounding_mode: str | None = None, **_: Any) -> None:
    if rounding_mode is not None:
        _divides(self, other)


@op("div.Tensor", "div.Scalar")
def div(self: Array, other: Any) -> Array:
    dtype = to_float(result_type(self, other))
    x, y = wide_operands(self, other, dtype)
    return (x / y).astype(dtype)


@op(
    "div.Tensor_mode",
    "div.Scalar_mode",
    values=_divides_rounded,
    numbers=_divides_rounded_by_number,
)
def div_mode(self: Array, other: Any, rounding_mode: str | None) -> Array:
    """Returns the quotient rounded towards zero or down; unspecified for division by an integer
    0."""
    if rounding_mode is None:
        return div(self, other)
    x, y = promote(self, other)
    refuse(f"div_{rounding_mode}", x.dtype, COMPLEX)
    if x.dtype in (jnp.float16, jnp.bfloat16) and y.size == 1:
        # With a single divisor, PyTorch's kernel rounds to half precision only once, at the end.
        return div_mode(*wide_operands(self, other, x.dtype), rounding_mode).astype(x.dtype)
    if rounding_mode == "floor":
        refuse("div_floor_cpu", x.dtype, BOOL)
        return _floor_divide(x, y)
    if rounding_mode == "trunc":
        return lax.div(*_same_shape(x, y)) if is_integral(x.dtype) else _truncated(x, y)
    raise RuntimeError(
        "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found "
        f"'{rounding_mode}'"
    )


@op(
    "floor_divide",
    "floor_divide.Scalar",
    layout="elementwise",
    values=_divides,
    numbers=_divides_by_number,
)
def floor_divide(self: Array, other: Any) -> Array:
    return div_mode(self, other, "floor")


def _steps(dtype: Any) -> Any:
    """Returns a function that rounds to half precision, which PyTorch does after each step of a
    division.

    It is not a conversion to half precision and back, which XLA may remove.
    """
    if dtype.itemsize != 2:
        return lambda x: x
    info = jnp.finfo(dtype)
    return lambda x: lax.reduce_precision(x, info.nexp, info.nmant)


def _truncated(x: Array, y: Array) -> Array:
    """Returns the quotient rounded towards zero.

    XLA multiplies by the reciprocal of a single divisor, whose last digit would decide here. That
    of doubles has no effect on a quotient that is rounded to float32 first.
    """
    rounded = _steps(x.dtype)

    @opmath
    def divide(x: Array, y: Array) -> Array:
        quotient = x.astype(jnp.float64) / y.astype(jnp.float64)
        return jnp.trunc(rounded(quotient.astype(x.dtype)))

    return divide(x, y)


def _floor_divide(x: Array, y: Array) -> Array:
    if is_integral(x.dtype):
        return jnp.floor_divide(x, y)
    rounded = _steps(x.dtype)

    @opmath
    def divide(x: Array, y: Array) -> Array:
        rest = lax.rem(x, y)
        quotient = rounded(rounded(x - rest) / y)
        below = (rest != 0) & ((rest < 0) != (y < 0))
        quotient = jnp.where(below, rounded(quotient - 1), quotient)
        floored = jnp.floor(quotient)
        floored = jnp.where(rounded(quotient - floored) > 0.5, rounded(floored + 1), floored)
        floored = jnp.where(quotient == 0, jnp.copysign(jnp.zeros_like(x), x / y), floored)
        return jnp.where(y == 0, x / y, floored)

    return divide(*_same_shape(x, y))


def _same_shape(x: Array, y: Array) -> tuple[Array, Array]:
    x, y = jnp.broadcast_arrays(x, y)
    return x, y


@op(
    "remainder.Tensor",
    "remainder.Scalar",
    "remainder.Scalar_Tensor",
    values=_divides,
    numbers=_divides_by_number,
)
def remainder(self: Any, other: Any) -> Array:
    x, y = promote(self, other)
    refuse("remainder_cpu", x.dtype, BOOL, COMPLEX)
    return opmath(jnp.remainder)(x, y)


@op("fmod.Tensor", "fmod.Scalar", values=_divides, numbers=_divides_by_number)
def fmod(self: Array, other: Any) -> Array:
    x, y = promote(self, other)
    refuse("fmod_cpu", x.dtype, BOOL, COMPLEX)
    return opmath(lax.rem)(*_same_shape(x, y))


# Powers -------------------------------------------------------------------------------------------


@op(
    "pow.Tensor_Scalar",
    static=("exponent",),
    autocast="float32",
    numbers=Holds("exponent", operands=True, integers_only=True),
)
def pow_scalar(self: Array, exponent: Any) -> Array:
    dtype = result_type(self, exponent)
    x = self.astype(dtype)
    if is_integral(dtype) and not isinstance(exponent, bool) and exponent < 0:
        raise RuntimeError("Integers to negative integer powers are not allowed.")
    if dtype == jnp.bool_:
        return x | (not exponent)
    roots = {0.5: of_complex.sqrt, -0.5: of_complex.rsqrt}
    if exponent in roots and not is_integral(dtype):
        return roots[exponent](x)
    if is_integral(dtype):
        return lax.integer_pow(x, int(exponent))
    whole = not isinstance(exponent, complex) and exponent == exponent // 1
    if whole and -64 <= exponent <= 64 and not (is_complex(dtype) and exponent < 0):
        return lax.integer_pow(x, int(exponent))
    power = of_complex.power if is_complex(dtype) else jnp.power
    if is_float(dtype) and 0 < abs(exponent) < (least := float(jnp.finfo(dtype).tiny)):
        exponent = math.copysign(2 * least, exponent)  # powers of negative numbers stay NaN
    return opmath(power)(x, jnp.asarray(constant(exponent, dtype)))


@op("pow.Tensor_Tensor", "pow.Scalar", autocast="float32")
def pow_tensor(self: Any, exponent: Array) -> Array:
    x, y = promote(self, exponent)
    refuse("pow", x.dtype, BOOL)
    if is_complex(x.dtype):
        return of_complex.power(x, y)
    if not is_integral(x.dtype):
        return opmath(jnp.power)(x, y)
    inverse = jnp.where(x == 1, 1, jnp.where(x == -1, 1 - 2 * (y & 1), 0)).astype(x.dtype)
    return jnp.where(y < 0, inverse, integer_power(x, jnp.maximum(y, 0)))


def integer_power(x: Array, exponent: Array) -> Array:
    """Returns powers of integers, modulo the range of their dtype, for nonnegative exponents.

    `jnp.power` uses only six bits of an exponent.
    """
    read = 6
    found = jnp.power(x, exponent & (2**read - 1))
    for _ in range(read):
        x = x * x

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        found, x, exponent = state
        return jnp.where(exponent & 1 == 1, found * x, found), x * x, exponent >> 1

    rest = (found, x, exponent >> read)
    return lax.while_loop(lambda state: (state[2] > 0).any(), step, rest)[0]


facts("pow.Scalar", layout="row_major")


@op("ldexp.Tensor")
def ldexp(self: Array, other: Array) -> Array:
    """Returns `self * 2**other`; for a float and an integer exponent, exactly, as in C, which takes
    the lowest 32 bits of the exponent."""
    if not (is_float(self.dtype) and is_integral(other.dtype)):
        x, y = promote(self, pow_tensor(2.0, other))
        return opmath(jnp.multiply)(x, y)
    refuse("ldexp_cpu_exp", other.dtype, BOOL)
    limit = 4 * jnp.finfo(jnp.float64).maxexp  # beyond, all numbers are zero or infinite
    exponent = jnp.clip(other.astype(jnp.int32), -limit, limit)
    return opmath(jnp.ldexp)(self, exponent)


def gcd(x: Array, y: Array) -> Array:
    """Like PyTorch's kernel, keeps the lowest integer, which has no absolute value."""

    def divide(pair: tuple[Array, Array]) -> tuple[Array, Array]:
        a, b = pair
        rest = lax.rem(b, jnp.where(a == 0, jnp.ones_like(a), a))
        return jnp.where(a == 0, a, rest), jnp.where(a == 0, b, a)

    pair = tuple(jnp.broadcast_arrays(jnp.abs(x), jnp.abs(y)))
    return lax.while_loop(lambda pair: jnp.any(pair[0] != 0), divide, pair)[1]


def lcm(x: Array, y: Array) -> Array:
    """Like C, computes with small integers in int."""
    x, y = jnp.broadcast_arrays(x, y)
    divisor = gcd(x, y)
    wide = jnp.promote_types(x.dtype, np.int32) if x.dtype.itemsize < 4 else x.dtype
    a, b, g = (n.astype(wide) for n in (x, y, divisor))
    multiple = jnp.abs(lax.div(a, jnp.where(g == 0, jnp.ones_like(g), g)) * b)
    return jnp.where(g == 0, 0, multiple).astype(x.dtype)
