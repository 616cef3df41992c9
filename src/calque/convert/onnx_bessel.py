"""Decompositions of Bessel functions, `erfc`, `erfcx`, `ndtri` and `trigamma`, computed in float64.

Where a series has only positive terms it is exact to the last digits; far out, asymptotic series
take over.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from calque.convert.onnx_special import digamma, in_double, polynomial, quantile

_FAR = 20.0
_IN_SQUARE = tuple(
    tuple(1 / (math.factorial(k) * math.factorial(k + order)) for k in range(60))
    for order in (0, 1)
)
"""Of the modified Bessel functions of order 0 and 1, as series in the square of half of x."""


def _asymptotic(order: int) -> Sequence[float]:
    """Returns the coefficients in 1/x of the function without its exponential (Hankel)."""
    found = [1.0]
    for k in range(1, 18):
        found.append(-found[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    return found


def _bessel(order: int, scaled: bool) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        size = x.abs()
        near, far = size.clamp(max=_FAR), size.clamp(min=_FAR)
        inner = polynomial(_IN_SQUARE[order], near * near / 4) * (near / 2) ** order
        outer = polynomial(_asymptotic(order), 1 / far) / (2 * math.pi * far).sqrt()
        if scaled:
            found = torch.where(size <= _FAR, inner * (-near).exp(), outer)
            found = torch.where(size == math.inf, 0.0, found)
        else:
            grown = (far / 2).exp()  # its square may be infinite where the product is not
            found = torch.where(size <= _FAR, inner, outer * grown * grown)
            found = torch.where(size == math.inf, math.inf, found)
        found = torch.where(x.isnan(), x, found)
        return found if not order else torch.where(x < 0, -found, found)

    return in_double(function)


def _erfcx(x: Tensor) -> Tensor:
    """Uses a series of positive terms for small numbers, and else a continued fraction."""
    near, far = x.clamp(-2.0, 2.0), x.abs().clamp(min=2.0)
    terms = [1.0]
    for n in range(1, 50):
        terms.append(terms[-1] * 2 / (2 * n + 1))
    series = 2 / math.sqrt(math.pi) * near * polynomial(terms, near * near)
    fraction = far
    for n in range(60, 0, -1):
        fraction = far + (n / 2) / fraction
    beyond = 1 / (math.sqrt(math.pi) * fraction)
    outer = torch.where(x < 0, 2 * (x * x).exp() - beyond, beyond)
    found = torch.where(x.abs() <= 2, (near * near).exp() - series, outer)
    return torch.where(x.isnan(), x, found)


def _erfc(x: Tensor) -> Tensor:
    size = x.abs()
    tail = (-size * size).exp() * _erfcx(size)
    return torch.where(x < 0, 2 - tail, tail)


def _ndtri(p: Tensor) -> Tensor:
    is_inside = (p > 0) & (p < 1)
    inner = torch.where(is_inside, p, 0.5)
    found = quantile(inner - 0.5, torch.minimum(inner, 1 - inner))
    ends = torch.where(p == 0, -math.inf, torch.where(p == 1, math.inf, math.nan))
    return torch.where(is_inside, found, ends)


def _trigamma(x: Tensor) -> Tensor:
    """Uses the asymptotic series to the right of 10, with recurrence and reflection."""
    is_left = x < 0.5
    z = torch.where(is_left, 1 - x, x)
    found = torch.zeros_like(z)
    for i in range(10):
        found = found + 1 / ((z + i) * (z + i))
    big = z + 10
    square = 1 / (big * big)
    bernoulli = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
    found = found + 1 / big + square / 2 + square / big * polynomial(bernoulli, square)
    sine = (math.pi * (x - x.round())).sin()
    return torch.where(is_left, (math.pi / sine) ** 2 - found, found)


_ZETA_TERMS = 10
_ZETA = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)
"""Bernoulli numbers over factorials, the coefficients of the sum of Euler and Maclaurin."""


def _zeta(x: Any, q: Any) -> Tensor:
    """Sums the first terms, and the others by the formula of Euler and Maclaurin."""
    tensors = [each for each in (x, q) if isinstance(each, Tensor)]
    dtype = torch.result_type(x, q)
    if dtype == torch.float64 or not dtype.is_floating_point:
        raise NotImplementedError(f"zeta of {dtype}")
    shape = torch.broadcast_shapes(*(each.shape for each in tensors))
    x, q = (each.to(torch.float64) if isinstance(each, Tensor) else float(each) for each in (x, q))
    x, q = (each + torch.zeros(shape, dtype=torch.float64) for each in (x, q))
    found = torch.zeros_like(q)
    for k in range(_ZETA_TERMS):
        found = found + (q + k) ** -x
    end = q + _ZETA_TERMS
    power = end**-x
    found = found + power * end / (x - 1) + power / 2
    rising, factor = power / end, x
    for i, coefficient in enumerate(_ZETA):
        found = found + coefficient * factor * rising
        factor = factor * (x + 2 * i + 1) * (x + 2 * i + 2)
        rising = rising / (end * end)
    is_pole = (q <= 0) & (q == q.floor())
    is_lost = (x < 1) | ((q < 0) & (x != x.floor()) & ~is_pole)
    found = torch.where((x == 1) | is_pole, math.inf, found)
    return torch.where(is_lost, math.nan, found).to(dtype)


def _polygamma(n: int, self: Tensor) -> Tensor:
    if n > 1:
        sign = 1.0 if n % 2 else -1.0
        return sign * math.factorial(n) * _zeta(float(n + 1), self)
    return in_double(_trigamma)(self) if n else in_double(digamma)(self)


_aten: Any = torch.ops.aten
BESSEL: dict[Any, Callable[..., Any]] = {
    _aten.i0.default: _bessel(0, False),
    _aten.special_i0e.default: _bessel(0, True),
    _aten.special_i1.default: _bessel(1, False),
    _aten.special_i1e.default: _bessel(1, True),
    _aten.erfc.default: in_double(_erfc),
    _aten.special_erfcx.default: in_double(_erfcx),
    _aten.special_ndtri.default: in_double(_ndtri),
    _aten.polygamma.default: _polygamma,
    _aten.special_zeta.default: _zeta,
    _aten.special_zeta.other_scalar: _zeta,
    _aten.special_zeta.self_scalar: _zeta,
}
