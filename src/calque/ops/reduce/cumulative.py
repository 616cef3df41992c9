"""Running sums, products, extrema and log-sums along a dimension."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from calque.ops.pointwise.arithmetic import complex_logaddexp
from calque.ops.table.facts import facts
from calque.ops.table.helpers import cast, wrap_dim
from calque.ops.table.promotion import (
    BOOL,
    COMPLEX,
    INT,
    is_complex,
    is_float,
    is_integral,
    opmath,
    refuse,
)
from calque.ops.table.registry import op


def _accumulate(name: str, function: Any, x: Array, dim: int, dtype: Any) -> Array:
    dim = wrap_dim(dim, x.ndim)
    if dtype is None:
        dtype = jnp.int64 if is_integral(x.dtype) else x.dtype
    refuse(f"{name}_out_cpu", jnp.dtype(dtype), BOOL)
    x = cast(x, dtype)
    return function(x, axis=dim).astype(dtype) if x.ndim else x


@op("cumsum", autocast="float32")
def cumsum(self: Array, dim: int, dtype: Any = None) -> Array:
    return _accumulate("cumsum", opmath(jnp.cumsum), self, dim, dtype)


@op("cumprod", autocast="float32")
def cumprod(self: Array, dim: int, dtype: Any = None) -> Array:
    return _accumulate("cumprod", opmath(jnp.cumprod), self, dim, dtype)


def _running(name: str) -> Any:
    def later_wins(new: Array, old: Array) -> Array:
        wins = new >= old if name == "cummax" else new <= old
        return wins | jnp.isnan(new) if is_float(new.dtype) else wins

    def rule(self: Array, dim: int) -> tuple[Array, Array]:
        refuse(f"{name}_helper_cpu", self.dtype, COMPLEX)
        dim = wrap_dim(dim, self.ndim)
        if self.ndim == 0:
            return self, jnp.zeros((), jnp.int64)
        places = lax.broadcasted_iota(jnp.int64, self.shape, dim)

        def later(old: Any, new: Any) -> Any:
            wins = later_wins(new[0], old[0])
            return tuple(jnp.where(wins, n, o) for n, o in zip(new, old, strict=True))

        indices = lax.associative_scan(later, (self, places), axis=dim)[1]
        # The scan's own values have lost the signs of zeros: it adds zeros where it interleaves.
        return jnp.take_along_axis(self, indices, dim, mode="promise_in_bounds"), indices

    return rule


for _name in ("cummax", "cummin"):
    op(_name)(_running(_name))


Scaled = tuple[Array, Array]


def _log_add(x: Scaled, y: Scaled) -> Scaled:
    """Returns the sum of two numbers, each represented as the exponent of its scale and a factor.

    The logarithm is taken once, at the end, so that rounding errors do not accumulate.
    """
    scale = jnp.maximum(x[0], y[0])
    shrink = [jnp.where(e == scale, 1, jnp.exp(e - scale)).astype(e.dtype) for e in (x[0], y[0])]
    return scale, x[1] * shrink[0] + y[1] * shrink[1]


def _in_turn(x: Array, dim: int) -> Array:
    """Adds complex numbers in order, because the order decides the logarithm's branch."""

    def step(total: Array, term: Array) -> tuple[Array, Array]:
        total = complex_logaddexp(total, term)
        return total, total

    terms = jnp.moveaxis(x, dim, 0)
    first = jnp.full(terms.shape[1:], -jnp.inf, x.dtype)
    return jnp.moveaxis(lax.scan(step, first, terms)[1], 0, dim)


@op("logcumsumexp", "_logcumsumexp")
@opmath
def logcumsumexp(self: Array, dim: int) -> Array:
    refuse("logcumsumexp_out_cpu", self.dtype, BOOL, INT)
    dim = wrap_dim(dim, self.ndim)
    if self.ndim == 0:
        return self
    if is_complex(self.dtype):
        return _in_turn(self, dim)
    terms = (self, jnp.ones_like(self))
    scale, factor = lax.associative_scan(_log_add, terms, axis=dim)
    return scale + jnp.log(factor)


facts("logcumsumexp", writes=("exact_dtype",))
facts("cumsum cumprod", writes=("says_dtype",))

facts("cummax cummin", writes=("exact_dtype", "computes_first"))
