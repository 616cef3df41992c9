"""Bessel functions of the orders 0 and 1, and Airy's Ai.

Near the origin, each is a series combined with a singular term; far away, it is its asymptotic
form, with series for the amplitude and the phase (`bessel_series`). cos(x - pi/4) is computed as
(cos x + sin x) / sqrt(2), so that the difference of a large argument is not rounded.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from calque.ops.pointwise import bessel_series as series
from calque.ops.pointwise.arithmetic import unary_float
from calque.ops.table.facts import no_kernel
from calque.ops.table.promotion import COMPLEX, opmath
from calque.ops.table.registry import op

Series = Sequence[float]


def _sum(coefficients: Series, t: Array) -> Array:
    """Returns a Chebyshev series by Clenshaw's recurrence, with as many terms as the precision
    needs."""
    least = jnp.finfo(t.dtype).eps / 64
    terms = [c for c in coefficients if abs(c) > least * max(map(abs, coefficients))]
    after, now = jnp.zeros_like(t), jnp.full_like(t, terms[-1])
    for coefficient in reversed(terms[1:-1]):
        after, now = now, 2 * t * now - after + coefficient
    return t * now - after + terms[0]


def _wave(order: int, x: Array) -> tuple[Array, Array]:
    """Returns J and Y of an order, for x > 8."""
    p, q = ((series.J0_P, series.J0_Q), (series.J1_P, series.J1_Q))[order]
    t = 128 / (x * x) - 1
    p, q = _sum(p, t), _sum(q, t) / x
    sine, cosine = jnp.sin(x), jnp.cos(x)
    along, across = cosine + sine, sine - cosine
    if order:  # shifted by a quarter period
        along, across = across, -along
    size = 1 / jnp.sqrt(math.pi * x)
    return size * (p * along - q * across), size * (p * across + q * along)


def _near(coefficients: Series, x: Array) -> Array:
    return _sum(coefficients, x * x / 32 - 1)


def _j(order: int) -> Callable[[Array], Array]:
    def rule(self: Array) -> Array:
        x = jnp.abs(self)
        far = _wave(order, jnp.maximum(x, 8))[0]
        near = jnp.minimum(x, 8)
        if order == 0:
            return jnp.where(x <= 8, _near(series.J0_NEAR, near), far)
        return jnp.where(x <= 8, self * _near(series.J1_NEAR, near), jnp.sign(self) * far)

    return rule


def _y(order: int) -> Callable[[Array], Array]:
    def rule(self: Array) -> Array:
        x = jnp.minimum(self, 8)
        if order == 0:
            near = 2 / math.pi * jnp.log(x) * _j(0)(x) + _near(series.Y0_NEAR, x)
        else:
            near = 2 / math.pi * (jnp.log(x) * _j(1)(x) - 1 / x) + x * _near(series.Y1_NEAR, x)
        far = _wave(order, jnp.maximum(self, 8))[1]
        return _right_of_zero(self, jnp.where(self <= 8, near, far), -jnp.inf)

    return rule


def _right_of_zero(x: Array, value: Array, pole: float) -> Array:
    """Returns the values of a function that has a pole at zero and is NaN for negative x."""
    return jnp.where(x > 0, value, jnp.where(x == 0, pole, jnp.nan).astype(x.dtype))


def _k(order: int, scaled: bool) -> Callable[[Array], Array]:
    def rule(self: Array) -> Array:
        x = jnp.clip(self, 0, 2)
        t = x * x / 2 - 1
        if order == 0:
            near = _sum(series.K0_NEAR, t) - jnp.log(x / 2) * jax.scipy.special.i0(x)
        else:
            near = _sum(series.K1_NEAR, t) / x + jnp.log(x / 2) * jax.scipy.special.i1(x)
        big = jnp.maximum(self, 2)
        far = _sum((series.K0_FAR, series.K1_FAR)[order], 4 / big - 1) / jnp.sqrt(big)
        near, far = (near * jnp.exp(x), far) if scaled else (near, far * jnp.exp(-big))
        return _right_of_zero(self, jnp.where(self <= 2, near, far), jnp.inf)

    return rule


def _airy(x: Array) -> Array:
    right, left = jnp.maximum(x, 2), jnp.maximum(-x, 5)
    middle = _sum(series.AIRY_MIDDLE, (2 * jnp.clip(x, -5, 2) + 3) / 7)
    z = 2 / 3 * right * jnp.sqrt(right)
    falling = _sum(series.AIRY_RIGHT, 4 / 3 * 2**1.5 / z - 1) * jnp.exp(-z)
    falling = falling / (2 * math.sqrt(math.pi) * jnp.sqrt(jnp.sqrt(right)))
    z = 2 / 3 * left * jnp.sqrt(left)
    t = 2 * (2 / 3 * 5**1.5 / z) ** 2 - 1
    p, q = _sum(series.AIRY_P, t), _sum(series.AIRY_Q, t) / z
    sine, cosine = jnp.sin(z), jnp.cos(z)
    wave = p * (sine + cosine) - q * (cosine - sine)
    wave = wave / (math.sqrt(2 * math.pi) * jnp.sqrt(jnp.sqrt(left)))
    value = jnp.where(x > 2, falling, jnp.where(x < -5, wave, middle))
    return jnp.where(jnp.isfinite(x), value, jnp.nan)


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "bessel_j0": _j(0),
    "bessel_j1": _j(1),
    "bessel_y0": _y(0),
    "bessel_y1": _y(1),
    "modified_bessel_k0": _k(0, False),
    "modified_bessel_k1": _k(1, False),
    "scaled_modified_bessel_k0": _k(0, True),
    "scaled_modified_bessel_k1": _k(1, True),
}

for _name, _function in FUNCTIONS.items():
    op(f"special_{_name}", refuses=no_kernel(f"{_name}_cpu", COMPLEX))(
        unary_float(opmath(_function))
    )


@op("special_airy_ai", refuses=no_kernel("airy_ai_cpu", COMPLEX))
def airy_ai(x: Array) -> Array:
    return unary_float(opmath(_airy))(x)
