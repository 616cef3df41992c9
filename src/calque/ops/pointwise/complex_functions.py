"""Functions of complex numbers as C defines them: the signs of zeros, infinities and NaN.

Elsewhere, JAX's functions are accurate. C's special values follow from two laws. First, each
function commutes with the conjugate, and most are odd or even; so a function is computed in one
quadrant, and the signs of the operand's parts, including zeros, are applied afterwards. Second,
within the quadrant, an infinite part determines the result even if the other part is NaN (C11,
annex G).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from calque.ops.table.promotion import is_complex, opmath

_LN2 = 0.6931471805599453

Function = Callable[[Array], Array]


def _sign(x: Array) -> Array:
    return jnp.where(jnp.signbit(x), -1, 1).astype(x.dtype)


def _size(x: Array) -> Array:
    """Returns |x|, with a derivative at zero."""
    return x * _sign(x)


def _is_infinite(z: Array) -> Array:
    return jnp.isinf(z.real) | jnp.isinf(z.imag)


def _of_real(real: Function, ours: Function) -> Function:
    """Returns a function that is JAX's for real numbers and ours for complex ones."""
    return lambda x: ours(x) if is_complex(x.dtype) else real(x)


def _conjugate(function: Function) -> Function:
    """Returns a function from its values in the upper half of the plane."""

    def mirrored(z: Array) -> Array:
        up = _sign(z.imag)
        found = function(lax.complex(z.real, z.imag * up))
        return lax.complex(found.real, found.imag * up)

    return mirrored


def _odd(function: Function) -> Function:
    """Returns an odd function from its values in the first quadrant."""

    def mirrored(z: Array) -> Array:
        right, up = _sign(z.real), _sign(z.imag)
        found = function(lax.complex(z.real * right, z.imag * up))
        return lax.complex(found.real * right, found.imag * up)

    return mirrored


def _even(function: Function) -> Function:
    """Returns an even function from its values in the first quadrant."""

    def mirrored(z: Array) -> Array:
        right, up = _sign(z.real), _sign(z.imag)
        found = function(lax.complex(z.real * right, z.imag * up))
        return lax.complex(found.real, found.imag * right * up)

    return mirrored


def _near_zero(function: Function) -> Function:
    """Returns a function that returns its operand at zero, with the signs of both parts."""
    return lambda z: jnp.where(z == 0, z, function(z))


def _wave(size: Array, wave: Array, zero: Any, infinite: Any) -> Array:
    """Returns a magnitude times a sine or cosine, with the given values where the product is NaN.

    Args:
        size: at least 0.
        wave: between -1 and 1, or NaN.
        zero: where a NaN product becomes 0.
        infinite: where it becomes infinity.
    """
    product = size * wave
    directed = jnp.where(zero, jnp.zeros_like(size), jnp.where(infinite, jnp.inf, product))
    # Keeps the derivative of other products.
    return jnp.where(jnp.isnan(product), directed, product)


def _exp(z: Array) -> Array:
    x, y = z.real, z.imag
    size, wild = jnp.exp(x), ~jnp.isfinite(y)
    nothing, beyond = (x == -jnp.inf) & wild, (x == jnp.inf) & wild
    return lax.complex(
        _wave(size, jnp.cos(y), nothing, beyond),
        _wave(size, jnp.sin(y), nothing | (y == 0), False),
    )


def _sinh(z: Array) -> Array:
    x, y = z.real, z.imag
    wild = ~jnp.isfinite(y)
    return lax.complex(
        _wave(jnp.sinh(x), jnp.cos(y), (x == 0) & wild, jnp.isinf(x) & wild),
        _wave(jnp.cosh(x), jnp.sin(y), y == 0, False),
    )


def _cosh(z: Array) -> Array:
    x, y = z.real, z.imag
    wild = ~jnp.isfinite(y)
    return lax.complex(
        _wave(jnp.cosh(x), jnp.cos(y), False, jnp.isinf(x) & wild),
        _wave(jnp.sinh(x), jnp.sin(y), (y == 0) | ((x == 0) & wild), False),
    )


def _turned(function: Function) -> Function:
    """Returns the function `-i f(iz)`: sin for sinh, tan for tanh, asin for asinh, atan for
    atanh."""

    def turned(z: Array) -> Array:
        found = function(lax.complex(-z.imag, z.real))
        return lax.complex(found.imag, -found.real)

    return turned


def _log(z: Array) -> Array:
    found = jnp.log(z)
    size = jnp.where(_is_infinite(z), jnp.full_like(found.real, jnp.inf), found.real)
    return lax.complex(size, found.imag)


def _scaled(base: float) -> Function:
    def function(z: Array) -> Array:
        found, scale = _log(z), jnp.log(jnp.asarray(base, z.real.dtype))
        return lax.complex(found.real / scale, found.imag / scale)

    return function


def _sqrt(z: Array) -> Array:
    right, up = _sign(z.real), _sign(z.imag)
    found = jnp.sqrt(lax.complex(z.real * right, z.imag * up))
    real, imag = found.real, found.imag
    # If one part is infinite, C defines the root whatever the other part is.
    tall = jnp.isinf(z.imag)
    wide = jnp.isinf(z.real) & ~tall
    vast = jnp.full_like(real, jnp.inf)
    flat = jnp.where(jnp.isnan(z.imag), z.imag, jnp.zeros_like(imag))
    real = jnp.where(tall | wide, vast, real)
    imag = jnp.where(tall, vast, jnp.where(wide, flat, imag))
    first, second = jnp.where(right > 0, real, imag), jnp.where(right > 0, imag, real)
    return lax.complex(first, second * up)


def _asinh(z: Array) -> Array:
    found = jnp.arcsinh(z)
    flat = jnp.isnan(z.real) & (z.imag == 0)
    return lax.complex(_size(found.real), jnp.where(flat, 0, _size(found.imag)))


def _tanh(z: Array) -> Array:
    found, x, y = jnp.tanh(z), z.real, z.imag
    real = jnp.where((x == 0) & ~jnp.isfinite(y), jnp.zeros_like(x), found.real)
    return lax.complex(real, jnp.where(jnp.isnan(x) & (y == 0), jnp.zeros_like(x), found.imag))


def _atanh(z: Array) -> Array:
    found, x, y = jnp.arctanh(z), z.real, z.imag
    real, imag = _size(found.real), _size(found.imag)
    lost = (jnp.isnan(x) & jnp.isfinite(y)) | jnp.isnan(y)
    none = jnp.isnan(y) & ((x == 0) | jnp.isinf(x))
    real = jnp.where(none, jnp.zeros_like(x), jnp.where(lost, jnp.full_like(x, jnp.nan), real))
    return lax.complex(real, jnp.where(lost, jnp.full_like(x, jnp.nan), imag))


def _acos(z: Array) -> Array:
    if z.dtype == jnp.complex128:  # PyTorch computes it from the arc sine
        found = asin(z)
        return lax.complex(jnp.pi / 2 - found.real, 0 - found.imag)
    up = _sign(z.imag)
    found = jnp.arccos(lax.complex(z.real, z.imag * up))
    real = jnp.where((z.real == 0) & jnp.isnan(z.imag), jnp.pi / 2, found.real)
    return lax.complex(real, -_size(found.imag) * up)


def _acosh(z: Array) -> Array:
    up = _sign(z.imag)
    found = jnp.arccosh(lax.complex(z.real, z.imag * up))
    imag = jnp.where((z.real == 0) & jnp.isnan(z.imag), jnp.pi / 2, _size(found.imag))
    return lax.complex(_size(found.real), imag * up)


def _abs(z: Array) -> Array:
    found = jnp.abs(z)
    return jnp.where(_is_infinite(z), jnp.full_like(found, jnp.inf), found)


def _inverse(z: Array) -> Array:
    """Returns 1 / z as C++ computes it (Smith's method)."""
    right = jnp.abs(z.real) >= jnp.abs(z.imag)
    greater, less = jnp.where(right, z.real, z.imag), jnp.where(right, z.imag, z.real)
    none = z == 0
    ratio = less / jnp.where(none, 1, greater)
    scale = 1 / (greater + less * ratio)
    added = ratio - jnp.where(jnp.signbit(ratio), -0.0, 0.0)  # ratio + 0, which XLA would leave out
    real = jnp.where(right, jnp.ones_like(ratio), added) * scale
    imag = jnp.where(right, 0 - ratio, -jnp.ones_like(ratio)) * scale
    return lax.complex(jnp.where(none, jnp.inf, real), jnp.where(none, jnp.nan, imag))


def power(z: Array, exponent: Array) -> Array:
    """Returns a power; a power of zero is 0 if the exponent's real part is positive."""
    found = jnp.power(z, exponent)
    none = (z == 0) & (exponent.real > 0) & (exponent.imag != 0)
    return jnp.where(none, jnp.zeros_like(found), found)


def sgn(z: Array) -> Array:
    """Returns z / |z|, and 0 at 0."""
    size = _abs(z)
    safe = jnp.where(size == 0, jnp.ones_like(size), size)
    found = lax.complex(z.real / safe, z.imag / safe)
    return jnp.where(size == 0, jnp.zeros_like(z), found)


_sinh_everywhere, _cosh_everywhere = _odd(_sinh), _even(_cosh)

# JAX composes some functions of several operations, each of which would round to half precision.

exp: Function = _of_real(jnp.exp, _conjugate(_exp))
expm1: Function = _of_real(opmath(jnp.expm1), _near_zero(_conjugate(jnp.expm1)))
log: Function = _of_real(jnp.log, _log)
log2: Function = _of_real(opmath(jnp.log2), _scaled(2.0))
log10: Function = _of_real(opmath(jnp.log10), _scaled(10.0))
log1p: Function = _of_real(opmath(jnp.log1p), _near_zero(jnp.log1p))
sqrt: Function = _of_real(jnp.sqrt, _sqrt)
sinh: Function = _of_real(jnp.sinh, _sinh_everywhere)
cosh: Function = _of_real(jnp.cosh, _cosh_everywhere)
sin: Function = _of_real(jnp.sin, _turned(_sinh_everywhere))
cos: Function = _of_real(jnp.cos, lambda z: _cosh_everywhere(lax.complex(-z.imag, z.real)))
_asinh_everywhere, _tanh_everywhere, _atanh_everywhere = map(_odd, (_asinh, _tanh, _atanh))
tanh: Function = _of_real(jnp.tanh, _tanh_everywhere)
tan: Function = _of_real(opmath(jnp.tan), _turned(_tanh_everywhere))
asinh: Function = _of_real(opmath(jnp.arcsinh), _asinh_everywhere)
asin: Function = _of_real(jnp.arcsin, _turned(_asinh_everywhere))
atanh: Function = _of_real(opmath(jnp.arctanh), _atanh_everywhere)
atan: Function = _of_real(jnp.arctan, _turned(_atanh_everywhere))
acos: Function = _of_real(jnp.arccos, _acos)
acosh: Function = _of_real(opmath(jnp.arccosh), _acosh)
exp2: Function = _of_real(
    opmath(jnp.exp2), lambda z: exp(lax.complex(z.real * _LN2, z.imag * _LN2))
)
rsqrt: Function = _of_real(lax.rsqrt, lambda z: _inverse(_sqrt(z)))
reciprocal: Function = _of_real(lambda x: 1 / x, _inverse)
sigmoid: Function = _of_real(jax.nn.sigmoid, lambda z: _inverse(1 + exp(-z)))
size: Function = _of_real(jnp.abs, _abs)
