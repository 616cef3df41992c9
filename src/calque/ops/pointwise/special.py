"""Special functions: those of torch.special, and similar ones."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from calque.ops.pointwise.arithmetic import binary, unary_float
from calque.ops.table.facts import facts, no_kernel
from calque.ops.table.promotion import BOOL, COMPLEX, INT, opmath, promote, to_float
from calque.ops.table.registry import op


def _entropy(x: Array) -> Array:
    inside = jnp.where(x > 0, -x * jnp.log(jnp.where(x > 0, x, 1)), jnp.zeros_like(x))
    return jnp.where(jnp.isnan(x), x, jnp.where(x < 0, -jnp.inf, inside))


def _erfcx(x: Array) -> Array:
    """Returns exp(x²)·erfc(x), for large x by its asymptotic series, because the factors
    overflow."""
    far, terms = (10.0, 12) if x.dtype == jnp.float64 else (5.0, 9)
    safe = jnp.where(x < far, x, 0)
    near = jnp.exp(safe * safe) * lax.erfc(safe)
    big = jnp.where(x < far, far, x)
    step = 1 / (2 * big * big)
    series = jnp.ones_like(x)
    for n in range(terms, 0, -1):
        series = 1 - (2 * n - 1) * step * series
    return jnp.where(x < far, near, series / (big * jnp.sqrt(jnp.pi)))


def _digamma(x: Array) -> Array:
    pole = jnp.where(x == 0, jnp.copysign(jnp.inf, -x), jnp.nan)
    return jnp.where((x <= 0) & (x == jnp.floor(x)), pole, lax.digamma(x))


def _sinc(x: Array) -> Array:
    scaled = jnp.where(x == 0, 1, x) * jnp.pi
    return jnp.where(x == 0, jnp.ones_like(x), jnp.sin(scaled) / scaled)


def _spherical_j0(x: Array) -> Array:
    small = 1 + x * x * (-1 / 6 + x * x * (1 / 120 - x * x / 5040))
    safe = jnp.where(jnp.abs(x) < 0.5, 1, x)
    far = jnp.where(jnp.isinf(x), jnp.zeros_like(x), jnp.sin(safe) / safe)
    return jnp.where(jnp.abs(x) < 0.5, small, far)


def _of_jax(name: str) -> Callable[..., Array]:
    """Returns a function of `jax.scipy.special`, which is imported at its first call."""

    def run(*operands: Array) -> Array:
        return getattr(jax.scipy.special, name)(*operands)

    return run


UNARY: dict[str, Callable[[Array], Array]] = {
    "erf": lax.erf,
    "erfc": lax.erfc,
    "erfinv": lax.erf_inv,
    "lgamma": lax.lgamma,
    "digamma": _digamma,
    "i0": _of_jax("i0"),
    "sinc": _sinc,
    "special_i0e": _of_jax("i0e"),
    "special_i1": _of_jax("i1"),
    "special_i1e": _of_jax("i1e"),
    "special_modified_bessel_i0": _of_jax("i0"),
    "special_modified_bessel_i1": _of_jax("i1"),
    "special_entr": _entropy,
    "special_erfcx": _erfcx,
    "special_log_ndtr": _of_jax("log_ndtr"),
    "special_ndtri": _of_jax("ndtri"),
    "special_spherical_bessel_j0": _spherical_j0,
}

for _name, _function in UNARY.items():
    _kernel = f"{_name.removeprefix('special_')}_cpu"
    _known: Any = {"refuses": no_kernel(_kernel, COMPLEX)} if _name.startswith("special_") else {}
    op(_name, **_known)(unary_float(opmath(_function)))
facts("i0", refuses=no_kernel("i0_vml_cpu", COMPLEX))


# Functions of two operands ------------------------------------------------------------------------


def _zeta(x: Array, q: Array) -> Array:
    """Returns Hurwitz's zeta function, infinite at its poles q = 0, -1, ...

    A negative q is first made positive by the recurrence zeta(x, q) = q^-x + zeta(x, q + 1).
    """
    x, q = jnp.broadcast_arrays(x, q)
    pole = (q <= 0) & (q == jnp.floor(q))
    undefined = (q < 0) & ~pole & (x != jnp.floor(x))
    steps = jnp.where(jnp.isfinite(q) & (q < 0) & ~pole & ~undefined, jnp.ceil(-q), 0)

    def carry(k: Array, total: Array) -> Array:
        term = jnp.power(q + k.astype(q.dtype), -x)
        return total + jnp.where(k < steps, term, jnp.zeros_like(term))

    most = jnp.minimum(jnp.max(steps, initial=0), 1 << 20).astype(jnp.int32)
    skipped = lax.fori_loop(jnp.int32(0), most, carry, jnp.zeros_like(q))
    value = jax.scipy.special.zeta(x, q + steps) + skipped
    limit = jnp.where(q < 1, jnp.inf, 1.0)  # of q^-x, for large x
    value = jnp.where(jnp.isnan(value) & ~jnp.isnan(x) & (q <= 1), limit, value)
    value = jnp.where(pole, jnp.inf, jnp.where(undefined, jnp.nan, value))
    return jnp.where(x == 1, jnp.inf, jnp.where(x < 1, jnp.nan, value))


_LARGE = 1e5


def _temme(a: Array, x: Array, last: int) -> Array:
    """Returns an incomplete gamma function for large a.

    This is the first term of Temme's uniform expansion (DLMF 8.12). What it leaves out, with the
    rounding of double precision, is below 1e-10 for a > 1e5.
    """
    off = (x - a) / a
    half = off - jnp.log1p(off)
    eta = jnp.sign(off) * jnp.sqrt(2 * half)
    near = jnp.abs(off) < 1e-3
    first = jnp.where(
        near, off / 12 - 1 / 3, 1 / jnp.where(near, 1, off) - 1 / jnp.where(near, 1, eta)
    )
    rest = jnp.exp(-a * half) * first / jnp.sqrt(2 * jnp.pi * a)
    sign = -1 if last else 1
    return lax.erfc(sign * eta * jnp.sqrt(a / 2)) / 2 + sign * rest


def _incomplete_gamma(function: Any, last: int) -> Any:
    """Returns a rule of an incomplete gamma function, with the limits of PyTorch's kernel.

    Args:
        function: of JAX.
        last: its limit for large x; for x = 0, it is the other of 0 and 1.
    """

    def rule(a: Array, x: Array) -> Array:
        dtype = a.dtype
        a, x = (n.astype(jnp.float64) for n in jnp.broadcast_arrays(a, x))
        large = a > _LARGE  # JAX's series lose all digits there
        value = jnp.where(large, _temme(a, x, last), function(jnp.where(large, 1, a), x))
        value = jnp.where(jnp.isinf(x), last, value)
        value = jnp.where(jnp.isinf(a), jnp.where(jnp.isinf(x), jnp.nan, 1 - last), value)
        value = jnp.where(x == 0, 1 - last, value)
        value = jnp.where(a == 0, jnp.where(x > 0, last, jnp.nan), value)
        return jnp.where((x < 0) | (a < 0), jnp.nan, value).astype(dtype)

    return rule


for _name, _function, _last in (
    ("igamma", _of_jax("gammainc"), 1),
    ("igammac", _of_jax("gammaincc"), 0),
):
    _refusal = no_kernel(f"{_name}_cpu", BOOL, INT, COMPLEX, pair=True)
    op(_name, refuses=_refusal)(binary(opmath(_incomplete_gamma(_function, _last))))
op(
    *("special_zeta", "special_zeta.self_scalar", "special_zeta.other_scalar"),
    refuses=no_kernel("zeta_cpu", COMPLEX, pair=True),
)(binary(opmath(_zeta), floating=True))


@op("polygamma")
@opmath
def polygamma(n: int, self: Array) -> Array:
    if n < 0:
        raise RuntimeError(f"polygamma(n, x) does not support negative n, but got {n}.")
    x = self.astype(to_float(self.dtype))
    if n == 0:
        return _digamma(x)
    order = jnp.asarray(n + 1, x.dtype)
    factorial = jnp.exp(lax.lgamma(order))
    value = (-1) ** (n + 1) * factorial * _zeta(order, x)
    return jnp.where(x == jnp.inf, 0, jnp.where(x == -jnp.inf, jnp.nan, value)) if n == 1 else value


@op("mvlgamma", writes=("computes_first",), layout="row_major")
@opmath
def mvlgamma(self: Array, p: int) -> Array:
    if p < 1:
        raise RuntimeError("p has to be greater than or equal to 1")
    x = self.astype(to_float(self.dtype))
    total = jnp.full_like(x, p * (p - 1) / 4 * math.log(math.pi))
    for k in range(p):
        total = total + lax.lgamma(x - k / 2)
    return total


# Orthogonal polynomials, by their three-term recurrences ------------------------------------------
# Each row gives P1 from x, and P(k+1) from k, x, P(k), P(k-1).


def _chebyshev(first: Callable[[Array], Array]) -> tuple[Any, Any]:
    return first, lambda k, x, p, before: 2 * x * p - before


RECURRENCES: dict[str, tuple[Any, Any]] = {
    "chebyshev_polynomial_t": _chebyshev(lambda x: x),
    "chebyshev_polynomial_u": _chebyshev(lambda x: 2 * x),
    "chebyshev_polynomial_v": _chebyshev(lambda x: 2 * x - 1),
    "chebyshev_polynomial_w": _chebyshev(lambda x: 2 * x + 1),
    "hermite_polynomial_h": (
        lambda x: 2 * x,
        lambda k, x, p, before: 2 * x * p - 2 * k * before,
    ),
    "hermite_polynomial_he": (
        lambda x: x,
        lambda k, x, p, before: x * p - k * before,
    ),
    "laguerre_polynomial_l": (
        lambda x: 1 - x,
        lambda k, x, p, before: ((2 * k + 1 - x) * p - k * before) / (k + 1),
    ),
    "legendre_polynomial_p": (
        lambda x: x,
        lambda k, x, p, before: ((2 * k + 1) * x * p - k * before) / (k + 1),
    ),
}


def _polynomial(name: str, shifted: bool) -> Callable[..., Array]:
    first, recur = RECURRENCES[name]

    def rule(x: Any, n: Any) -> Array:
        x, n = promote(x, n, floating=True)
        x, n = jnp.broadcast_arrays(2 * x - 1 if shifted else x, jnp.trunc(n))
        zero, one = jnp.zeros_like(x), jnp.ones_like(x)

        def step(_: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            before, p, result, degree = state
            following = recur(degree, x, p, before)
            return p, following, jnp.where(n == degree + 1, following, result), degree + 1

        p1 = first(x)
        start = jnp.where(n == 0, one, jnp.where(n == 1, p1, zero))
        known = jnp.where(jnp.isfinite(n), n, 0)
        top = jnp.max(known, initial=0).astype(jnp.int32)
        # The degree is an array: XLA would replace division by a constant with multiplication.
        return lax.fori_loop(jnp.int32(1), top, step, (one, p1, start, one))[2]

    return rule


for _name in RECURRENCES:
    for _prefix in ("", "shifted_") if _name.startswith("chebyshev") else ("",):
        _full = f"special_{_prefix}{_name}"
        op(
            *(_full, f"{_full}.n_scalar", f"{_full}.x_scalar"),
            refuses=no_kernel(f"{_prefix}{_name}_cpu", COMPLEX, pair=True),
        )(_polynomial(_name, bool(_prefix)))
