"""Decompositions of special functions and statistics.

Special functions of float32 and narrower dtypes are computed in float64, so that the rounded
results are exact or nearly so. float64 is not supported.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_LANCZOS = (
    *(0.99999999999999709182, 57.156235665862923517, -59.597960355475491248),
    *(14.136097974741747174, -0.49191381609762019978, 0.33994649984811888699e-4),
    *(0.46523628927048575665e-4, -0.98374475304879564677e-4, 0.15808870322491248884e-3),
    *(-0.21026444172410488319e-3, 0.21743961811521264320e-3, -0.16431810653676389022e-3),
    *(0.84418223983852743293e-4, -0.26190838401581408670e-4, 0.36899182659531622704e-5),
)
"""The coefficients of Lanczos' approximation of the gamma function, with g = 607/128 (Godfrey,
2001).
"""
_BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
"""The coefficients of the asymptotic series of digamma."""
_CENTRAL = (
    (
        *(3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3),
        *(1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4),
        *(3.3430575583588128105e4, 2.5090809287301226727e3),
    ),
    (
        *(1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3),
        *(2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4),
        5.2264952788528545610e3,
    ),
)
_TAIL = (
    (
        *(1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0),
        *(3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1),
        *(2.27238449892691845833e-2, 7.74545014278341407640e-4),
    ),
    (
        *(1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1),
        *(1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4),
        1.05075007164441684324e-9,
    ),
)
_FAR_TAIL = (
    (
        *(6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0),
        *(2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3),
        *(2.71155556874348757815e-5, 2.01033439929228813265e-7),
    ),
    (
        *(1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1),
        *(1.48753612908506148525e-2, 7.86869131145613259100e-4, 1.84631831751005468180e-5),
        *(1.42151175831644588870e-7, 2.04426310338993978564e-15),
    ),
)
"""Of Wichura's algorithm AS 241 (1988) for quantiles of the normal distribution: numerators and
denominators, in the middle, beside it and far out."""


def in_double(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A decorator: a function of float64 takes and returns narrower dtypes."""

    def run(self: Tensor) -> Tensor:
        if self.dtype == torch.float64 or self.is_complex():
            raise NotImplementedError(f"{function.__name__} of {self.dtype}")
        dtype = self.dtype if self.is_floating_point() else torch.get_default_dtype()
        return function(self.to(torch.float64)).to(dtype)

    return run


def polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """Evaluates a polynomial by Horner's rule."""
    found = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        found = found * x + coefficient
    return found


def _lgamma(x: Tensor) -> Tensor:
    """Uses Lanczos' approximation, and reflection to the left of 1/2."""
    is_left = x < 0.5
    z = torch.where(is_left, 1 - x, x)
    series = torch.full_like(z, _LANCZOS[0])
    for i in range(len(_LANCZOS) - 1, 0, -1):
        series = series + _LANCZOS[i] / (z + i)
    moved = z + (607 / 128 + 0.5)
    found = (z + 0.5) * moved.log() - moved + 0.5 * math.log(2 * math.pi) + (series / z).log()
    found = torch.where(z == math.inf, math.inf, found)
    sine = (math.pi * (x - x.round())).sin().abs()
    found = torch.where(is_left, (math.pi / sine).log() - found, found)
    found = torch.where((x == 1) | (x == 2), 0.0, found)
    return torch.where(x.abs() == math.inf, math.inf, found)


def digamma(x: Tensor) -> Tensor:
    """Uses the asymptotic series to the right of 10, with recurrence and reflection."""
    is_left = x < 0.5
    z = torch.where(is_left, 1 - x, x)
    found = torch.zeros_like(z)
    for i in range(10):
        found = found - 1 / (z + i)
    big = z + 10
    square = 1 / (big * big)
    found = found + big.log() - 0.5 / big - square * polynomial(_BERNOULLI, square)
    angle = math.pi * (x - x.round())
    found = torch.where(is_left, found - math.pi * angle.cos() / angle.sin(), found)
    is_pole = x == x.round()
    found = torch.where(is_left & is_pole, math.nan, found)
    found = torch.where(x == 0, -x.reciprocal(), found)
    return torch.where(x == math.inf, math.inf, torch.where(x == -math.inf, math.nan, found))


def quantile(q: Tensor, beside: Tensor) -> Tensor:
    """Returns a quantile of the normal distribution.

    Args:
        q: the probability, less 1/2.
        beside: the probability or its complement, whichever is smaller.
    """
    r = 0.180625 - q * q
    middle = q * _quotient(_CENTRAL, r)
    r = (-beside.log()).sqrt()
    tail = torch.where(r <= 5, _quotient(_TAIL, r - 1.6), _quotient(_FAR_TAIL, r - 5))
    return torch.where(q.abs() <= 0.425, middle, q.sign() * tail)


def _quotient(coefficients: Sequence[Sequence[float]], x: Tensor) -> Tensor:
    return polynomial(coefficients[0], x) / polynomial(coefficients[1], x)


def _erfinv(x: Tensor) -> Tensor:
    """Uses the quantiles of the normal distribution."""
    found = quantile(x / 2, 0.5 - (x / 2).abs()) / math.sqrt(2)
    return torch.where(x.abs() == 1, x * math.inf, found)


def _hypot(self: Tensor, other: Tensor) -> Tensor:
    a, b = torch.broadcast_tensors(self.abs(), other.abs())
    large, small = torch.maximum(a, b), torch.minimum(a, b)
    ratio = small / torch.where(large == 0, 1, large)
    found = large * (1 + ratio * ratio).sqrt()
    return torch.where((a == math.inf) | (b == math.inf), math.inf, found)


def is_negative(x: Tensor) -> Tensor:
    """Returns whether each number has a minus sign."""
    return (x < 0) | (x.reciprocal() < 0) if x.is_floating_point() else x < 0  # includes -0.0


def _angle(self: Tensor) -> Tensor:
    if self.is_complex():
        raise NotImplementedError("the angle of a complex number")
    dtype = self.dtype if self.is_floating_point() else torch.get_default_dtype()
    x = self.to(dtype)
    return torch.where(x.isnan(), x, torch.where(x < 0, math.pi, torch.zeros_like(x)))


def _nanmedian_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Returns the median of the elements that are not NaN, the lower of two."""
    if not self.dim():
        return self.clone(), torch.zeros((), dtype=torch.int64)
    missing = self.isnan()
    order = torch.where(missing, math.inf, self) if self.is_floating_point() else self
    places = order.sort(dim=dim, stable=True).indices
    late = missing.gather(dim, places).to(torch.int64).sort(dim=dim, stable=True).indices
    places = places.gather(dim, late)
    count = missing.logical_not().sum(dim, keepdim=True)
    middle = torch.div(count - 1, 2, rounding_mode="floor").clamp(min=0)
    places = places.gather(dim, middle)
    values = self.gather(dim, places)
    if self.is_floating_point():
        values = torch.where(count == 0, math.nan, values)
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def _nanmedian(self: Tensor) -> Tensor:
    return _nanmedian_dim(self.reshape(-1), 0)[0]


def _mode(self: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Returns the smallest of the most frequent values, and its last index."""
    if not self.dim():
        return self.clone(), torch.zeros((), dtype=torch.int64)
    if self.is_floating_point():
        most: Any = math.inf
    else:
        most = 1 if self.dtype == torch.bool else torch.iinfo(self.dtype).max
    x = self.movedim(dim, -1)
    x = x.to(torch.int32) if self.dtype == torch.bool else x
    counts = (x.unsqueeze(-1) == x.unsqueeze(-2)).sum(-1)
    is_frequent = counts == counts.amax(-1, keepdim=True)
    values = torch.where(is_frequent, x, most).amin(-1, keepdim=True)
    places = torch.where(x == values, torch.arange(x.shape[-1]), -1).amax(-1, keepdim=True)
    found = values.to(self.dtype), places
    moved = [each.movedim(-1, dim) for each in found]
    return tuple(moved if keepdim else [each.squeeze(dim) for each in moved])  # pyright: ignore[reportReturnType]


def _histc(self: Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Tensor:
    if not self.is_floating_point():
        raise NotImplementedError(f"histc of {self.dtype}")
    x = self.flatten()
    low, high = (torch.tensor(float(each), dtype=x.dtype) for each in (min, max))
    if min == max:
        low, high = (x.amin(), x.amax()) if x.numel() else (low, high)
        low, high = torch.where(low == high, low - 1, low), torch.where(low == high, high + 1, high)
    place = ((x - low) / (high - low) * bins).floor().clamp(max=bins - 1)
    is_inside = (x >= low) & (x <= high)
    hits = (place.unsqueeze(1) == torch.arange(bins, dtype=x.dtype)) & is_inside.unsqueeze(1)
    return hits.to(x.dtype).sum(0)


_aten = torch.ops.aten
SPECIAL: dict[Any, Callable[..., Any]] = {
    _aten.lgamma.default: in_double(_lgamma),
    _aten.digamma.default: in_double(digamma),
    _aten.erfinv.default: in_double(_erfinv),
    _aten.hypot.default: _hypot,
    _aten.histc.default: _histc,
    _aten.signbit.default: is_negative,
    _aten.angle.default: _angle,
    _aten.nanmedian.default: _nanmedian,
    _aten.nanmedian.dim: _nanmedian_dim,
    _aten.mode.default: _mode,
}
