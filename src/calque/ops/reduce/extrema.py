"""Extrema and order statistics, with their positions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.ops.table.facts import facts, senseless
from calque.ops.table.helpers import first_position, maximum, minimum, wrap_dim, wrap_dims
from calque.ops.table.promotion import COMPLEX, is_float, refuse
from calque.ops.table.registry import op

Pair = tuple[Array, Array]
_SHORT = 32  # elements


def _nonempty(name: str, x: Array, axes: tuple[int, ...]) -> None:
    for axis in axes:
        if x.shape[axis] == 0:
            raise IndexError(f"{name}(): Expected reduction dim {axis} to have non-zero size.")


def _whole(name: str, x: Array) -> None:
    refuse(name, x.dtype, COMPLEX)
    if x.size == 0:
        raise RuntimeError(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the "
            "reduction dim with the 'dim' argument."
        )


def _reduce(name: str, x: Array, dims: Any, keepdim: bool) -> Array:
    refuse(name, x.dtype, COMPLEX)
    axes = wrap_dims(dims, x.ndim)
    _nonempty(name, x, axes)
    return (maximum if "max" in name else minimum)(x, axes, keepdim)


def _extreme_condition(self: Any, dim: Any = (), *_: Any, **__: Any) -> None:
    if self.size == 0 and not len(dim):
        raise RuntimeError(
            "amax() and amin(): Expected reduction dim to be specified for input.numel() == 0. "
            "Specify the reduction dim with the 'dim' argument."
        )


@op("amax", writes=("exact_dtype",), condition=_extreme_condition)
def amax(self: Array, dim: Any = (), keepdim: bool = False) -> Array:
    return _reduce("amax", self, dim, keepdim)


@op("amin", writes=("exact_dtype",), condition=_extreme_condition)
def amin(self: Array, dim: Any = (), keepdim: bool = False) -> Array:
    return _reduce("amin", self, dim, keepdim)


@op("aminmax", writes=("exact_dtype",))
def aminmax(self: Array, dim: int | None = None, keepdim: bool = False) -> Pair:
    dims = () if dim is None else (dim,)
    if dim is None:
        _whole("aminmax", self)
    return _reduce("amin", self, dims, keepdim), _reduce("amax", self, dims, keepdim)


@op("_aminmax", "_aminmax.dim")
def aminmax_dim(self: Array, dim: int | None = None, keepdim: bool = False) -> Pair:
    return aminmax(self, dim, keepdim)


@op("max")
def max_all(self: Array) -> Array:
    _whole("max", self)
    return maximum(self)


@op("min")
def min_all(self: Array) -> Array:
    _whole("min", self)
    return minimum(self)


def _position(name: str, x: Array, dim: int, keepdim: bool) -> Array:
    """Returns the index of the first extremum; NaN counts as one."""
    if x.ndim == 0:
        return jnp.zeros((), jnp.int64)
    size = x.shape[dim]  # may be symbolic in exports
    if isinstance(size, int) and _SHORT < size < 1 << 31 and jax.default_backend() == "cpu":
        return _position_by_value(name, x, dim, keepdim)
    function = lax.argmax if "max" in name else lax.argmin
    return first_position(function, x, dim, keepdim).astype(jnp.int64)


def _position_by_value(name: str, x: Array, dim: int, keepdim: bool) -> Array:
    """Like `_position`, but finds the extremum first and then its position.

    XLA's CPU code for two plain reductions is vectorized, unlike that for a reduction of pairs: a
    row of 1,000 elements takes a ninth of the time, but one of 16 several times as long.
    """
    extremum = (maximum if "max" in name else minimum)(x, (dim,), True)
    place = lax.broadcasted_iota(jnp.int32, x.shape, dim)
    found = (x == extremum) | (x != x)  # NaN differs from itself
    first = jnp.min(jnp.where(found, place, x.shape[dim] - 1), axis=dim, keepdims=keepdim)
    return first.astype(jnp.int64)


def _with_position(name: str) -> Any:
    def rule(self: Array, dim: int, keepdim: bool = False) -> Pair:
        refuse(name, self.dtype, COMPLEX)
        dim = wrap_dim(dim, self.ndim)
        return _reduce(name, self, (dim,), keepdim), _position(name, self, dim, keepdim)

    return rule


def _only_position(name: str) -> Any:
    def rule(self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
        refuse(f"{name}_cpu", self.dtype, COMPLEX)
        if dim is None:
            _whole(name, self)
            flat = _position(name, self.reshape(-1), 0, False)
            return flat.reshape((1,) * self.ndim) if keepdim else flat
        dim = wrap_dim(dim, self.ndim)
        _nonempty(name, self, (dim,) if self.ndim else ())
        return _position(name, self, dim, keepdim)

    return rule


for _name in ("max", "min"):
    op(f"{_name}.dim")(_with_position(_name))
    op(f"arg{_name}")(_only_position(f"arg{_name}"))


# Order statistics ---------------------------------------------------------------------------------


def _sorted(x: Array, axis: int) -> Pair:
    """Returns the sorted values and their positions; NaN counts as the largest."""
    places = lax.broadcasted_iota(jnp.int64, x.shape, axis)
    values, indices = lax.sort((x, places), dimension=axis, num_keys=1)
    return values, indices


def _pick(x: Array, place: Array, axis: int) -> Array:
    return jnp.take_along_axis(x, place.astype(jnp.int32), axis=axis)


def _ranked(name: str, x: Array, dim: int, keepdim: bool, rank: Any) -> Pair:
    """Returns the values of a rank (which may depend on the count of NaNs) and their positions."""
    refuse(name, x.dtype, COMPLEX)
    dim = wrap_dim(dim, x.ndim)
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    _nonempty(name, x, (dim,))
    nans = jnp.isnan(x) if is_float(x.dtype) else jnp.zeros(x.shape, jnp.bool_)
    missing = jnp.sum(nans, axis=dim, keepdims=True, dtype=jnp.int32)
    values, indices = _sorted(x, dim)
    place = jnp.broadcast_to(rank(x.shape[dim], missing), missing.shape)
    found = _pick(values, place, dim), _pick(indices, place, dim)
    if keepdim:
        return found
    return jnp.squeeze(found[0], dim), jnp.squeeze(found[1], dim)


def _median_rank(count: int, missing: Array) -> Array:
    # With NaNs, the median is the first NaN; NaNs are sorted last.
    return jnp.where(missing > 0, count - missing, (count - 1) // 2)


def _nanmedian_rank(count: int, missing: Array) -> Array:
    return jnp.maximum(count - missing - 1, 0) // 2


def _median(name: str, rank: Any) -> None:
    def whole(self: Array) -> Array:
        if self.size == 0:
            empty = jnp.nan if is_float(self.dtype) else jnp.iinfo(self.dtype).min
            return jnp.asarray(empty, self.dtype)
        return _ranked(name, self.reshape(-1), 0, False, rank)[0]

    def along(self: Array, dim: int, keepdim: bool = False) -> Pair:
        return _ranked(name, self, dim, keepdim, rank)

    op(name)(whole)
    op(f"{name}.dim")(along)


_median("median", _median_rank)
_median("nanmedian", _nanmedian_rank)


def _kthvalue_condition(self: Any, k: int, dim: int = -1, *_: Any, **__: Any) -> None:
    dim = wrap_dim(dim, self.ndim)
    if self.ndim and self.shape[dim] == 0:
        raise IndexError(f"kthvalue(): Expected reduction dim {dim} to have non-zero size.")


@op("kthvalue", writes=("exact_dtype", "apart"), condition=_kthvalue_condition)
def kthvalue(self: Array, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    axis = wrap_dim(dim, self.ndim)
    if not 0 < k <= (self.shape[axis] if self.ndim else 1):
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {axis}")
    return _ranked("kthvalue", self, dim, keepdim, lambda count, missing: jnp.int32(k - 1))


@op("mode", writes=("exact_dtype",))
def mode(self: Array, dim: int = -1, keepdim: bool = False) -> Pair:
    """Returns the most frequent value (the smallest of several) and its last position."""
    refuse("mode", self.dtype, COMPLEX)
    dim = wrap_dim(dim, self.ndim)
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    _nonempty("mode", self, (dim,))
    values, indices = _sorted(jnp.moveaxis(self, dim, -1), self.ndim - 1)
    # Each run of equal values gets, at its last element, the length of the run.
    new = jnp.concatenate(
        [jnp.ones((*values.shape[:-1], 1), jnp.bool_), values[..., 1:] != values[..., :-1]], -1
    )
    place = lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)
    start = lax.cummax(jnp.where(new, place, 0), axis=values.ndim - 1)
    best = first_position(lax.argmax, place - start, -1, True)
    found = _pick(values, best, -1), _pick(indices, best, -1)
    if keepdim:
        return jnp.moveaxis(found[0], -1, dim), jnp.moveaxis(found[1], -1, dim)
    return found[0][..., 0], found[1][..., 0]


facts(
    "argmax argmin",
    writes=("exact_dtype",),
    refuses=senseless("does not support complex input", COMPLEX),
)
facts("max.dim median median.dim min.dim nanmedian nanmedian.dim", writes=("exact_dtype",))


def _argument_condition(self: Any, dim: int | None = None, *_: Any, **__: Any) -> None:
    if self.dtype == np.bool_:
        raise RuntimeError("argmax() and argmin(): does not support bool input")
    if dim is not None:
        wrap_dims(dim, self.ndim)
    if dim is None and self.size == 0:
        raise IndexError(
            "argmax() and argmin(): Expected reduction dim to be specified for input.numel() == 0."
        )


facts("argmax argmin", condition=_argument_condition)
