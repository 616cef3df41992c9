"""Running sums, products, extrema and log-sums along a dimension."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from calque.ops.common import wrap_dim
from calque.ops.dtypes import BOOL, COMPLEX, INT, is_complex, is_float, is_integral, opmath, refuse
from calque.ops.reduction import cast
from calque.ops.registry import op


def _accumulate(function: Any, x: Array, dim: int, dtype: Any) -> Array:
    dim = wrap_dim(dim, x.ndim)
    if dtype is None:
        dtype = jnp.int64 if is_integral(x.dtype) else x.dtype
    x = cast(x, dtype)
    return function(x, axis=dim).astype(dtype) if x.ndim else x


@op("cumsum")
def cumsum(self: Array, dim: int, dtype: Any = None) -> Array:
    return _accumulate(opmath(jnp.cumsum), self, dim, dtype)


@op("cumprod")
def cumprod(self: Array, dim: int, dtype: Any = None) -> Array:
    return _accumulate(opmath(jnp.cumprod), self, dim, dtype)


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

        values, indices = lax.associative_scan(later, (self, places), axis=dim)
        return values, indices

    return rule


for _name in ("cummax", "cummin"):
    op(_name)(_running(_name))


def _log_add(x: Array, y: Array) -> Array:
    if not is_complex(x.dtype):
        return jnp.logaddexp(x, y)
    low = jnp.where(x.real < y.real, x, y)
    high = jnp.where(x.real < y.real, y, x)
    return high + jnp.log1p(jnp.exp(low - high))


@op("logcumsumexp", "_logcumsumexp")
@opmath
def logcumsumexp(self: Array, dim: int) -> Array:
    refuse("logcumsumexp_out_cpu", self.dtype, BOOL, INT)
    dim = wrap_dim(dim, self.ndim)
    return lax.associative_scan(_log_add, self, axis=dim) if self.ndim else self
