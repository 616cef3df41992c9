"""Reductions: sums, means, products, norms, `any` and `all`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.ops.pointwise.arithmetic import sub
from calque.ops.reduce import converted
from calque.ops.table.facts import facts
from calque.ops.table.helpers import cast, is_known, maximum, minimum, wrap_dims
from calque.ops.table.promotion import (
    BOOL,
    INT,
    RefusedDtype,
    is_complex,
    is_integral,
    opmath,
    real_dtype,
    refuse,
    to_float,
    type_name,
)
from calque.ops.table.registry import op
from calque.ops.table.unsharded_axes import undivided


def _reduced(function: Any, combine: Any, x: Array, dim: Any, keepdim: bool, dtype: Any) -> Array:
    """Returns a sum or product: of integers and bools in int64, of half precision in float32."""
    axes = wrap_dims(dim, x.ndim)
    if dtype is None:
        dtype = jnp.int64 if is_integral(x.dtype) else x.dtype
    if dtype == jnp.bool_:
        return function(cast(x, dtype), axis=axes, keepdims=keepdim) != 0
    if not is_integral(dtype):
        return function(cast(x, dtype), axis=axes, keepdims=keepdim)

    def over(part: Array, axes: tuple[int, ...]) -> Array:
        return function(part, axis=axes, keepdims=True, dtype=dtype)  # JAX would widen integers

    total = converted.reduce(x, lambda part: cast(part, dtype), over, combine, axes)
    return total if keepdim else jnp.squeeze(total, axes)


@op("sum.dim_IntList", autocast="float32")
def sum(self: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
    return _reduced(jnp.sum, jnp.add, self, dim, keepdim, dtype)


@op("nansum")
def nansum(self: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
    if is_complex(self.dtype):
        raise RefusedDtype("nansum does not support complex inputs")
    x = self if is_integral(self.dtype) else jnp.where(jnp.isnan(self), 0, self)
    return sum(x, dim, keepdim, dtype)


@op("mean.dim")
def mean(self: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
    dtype = self.dtype if dtype is None else dtype
    if is_integral(dtype):
        raise RefusedDtype(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or "
            f"complex dtype. Got: {type_name(dtype)}"
        )
    return jnp.mean(cast(self, dtype), axis=wrap_dims(dim, self.ndim), keepdims=keepdim)


@op("prod.dim_int", autocast="float32")
def prod(self: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
    return _reduced(jnp.prod, jnp.multiply, self, dim, keepdim, dtype)


op("prod", autocast="float32")(lambda self, dtype=None: prod(self, dtype=dtype))
op("sum", autocast="float32")(lambda self, dtype=None: sum(self, dtype=dtype))
op("mean")(lambda self, dtype=None: mean(self, dtype=dtype))


@op("hash_tensor")
def hash_tensor(self: Array, dim: Any = (), keepdim: bool = False, mode: int = 0) -> Array:
    """Returns the exclusive or of the elements' bits, as float64 or as int64."""
    if mode != 0:
        raise RuntimeError("Only support XOR for now")
    wide = jnp.int64 if is_integral(self.dtype) else jnp.float64
    bits = lax.bitcast_convert_type(self.astype(wide), jnp.uint64)
    axes = wrap_dims(dim, self.ndim)
    # Sharded devices cannot combine this reduction.
    total = lax.reduce(undivided(bits, axes), np.uint64(0), lax.bitwise_xor, axes)
    return jnp.expand_dims(total, axes) if keepdim else total


# Variance -----------------------------------------------------------------------------------------


@opmath
def _variance(x: Array, dim: Any, correction: Any, keepdim: bool) -> tuple[Array, Array]:
    if is_integral(x.dtype):
        raise RefusedDtype(
            "std and var only support floating point and complex dtypes, but got "
            f"{type_name(x.dtype)}"
        )
    axes = wrap_dims(dim, x.ndim)
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    center = jnp.mean(x, axis=axes, keepdims=True)
    apart = x - center
    squares = apart.real**2 + apart.imag**2 if is_complex(x.dtype) else apart * apart
    lost = 1 if correction is None else correction
    divisor = max(0, count - lost) if is_known(count) else jnp.maximum(count - lost, 0)
    if is_known(x.size) and not x.size:
        divisor = 0  # no elements give NaN, whatever the correction
    total = jnp.sum(squares, axis=axes, keepdims=keepdim)
    variance = total / jnp.asarray(divisor, total.dtype)
    return variance, center if keepdim else jnp.squeeze(center, axes)


@op("var.correction", static=("correction",))
def var(self: Array, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Array:
    return _variance(self, dim, correction, keepdim)[0]


@op("std.correction", static=("correction",))
def std(self: Array, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Array:
    return jnp.sqrt(_variance(self, dim, correction, keepdim)[0])


@op("var_mean.correction", static=("correction",))
def var_mean(
    self: Array, dim: Any = None, correction: Any = None, keepdim: bool = False
) -> tuple[Array, Array]:
    return _variance(self, dim, correction, keepdim)


@op("std_mean.correction", static=("correction",))
def std_mean(
    self: Array, dim: Any = None, correction: Any = None, keepdim: bool = False
) -> tuple[Array, Array]:
    variance, center = _variance(self, dim, correction, keepdim)
    return jnp.sqrt(variance), center


# any and all --------------------------------------------------------------------------------------


def _truth(function: Any) -> Any:
    def rule(self: Array, dim: Any = None, keepdim: bool = False) -> Array:
        # Unlike in a sum, an empty list of dimensions reduces nothing.
        axes = () if dim is not None and dim == [] else wrap_dims(dim, self.ndim)
        result = function(self != 0, axis=axes, keepdims=keepdim)
        return result.astype(jnp.uint8 if self.dtype == jnp.uint8 else jnp.bool_)

    return rule


for _name, _function in (("all", jnp.all), ("any", jnp.any)):
    op(_name, f"{_name}.dim", f"{_name}.dims")(_truth(_function))


def _sum_of(part: Array, axes: tuple[int, ...]) -> Array:
    return jnp.sum(part, axis=axes, keepdims=True)


@op("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(self: Array, dim: Any = None) -> Array:
    axes = wrap_dims(dim, self.ndim)
    total = converted.reduce(
        self, lambda part: (part != 0).astype(jnp.int64), _sum_of, jnp.add, axes
    )
    return jnp.squeeze(total, axes)


# Norms --------------------------------------------------------------------------------------------


def vector_norm_condition(
    self: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> None:
    """Raise if a norm cannot have this dtype."""
    if dtype is not None and is_integral(dtype):
        raise RuntimeError(
            "linalg.vector_norm: dtype should be floating point or complex, but got "
            f"{type_name(dtype)}"
        )


@op(
    "linalg_vector_norm",
    static=("ord",),
    writes=("exact_dtype",),
    autocast="float32",
    condition=vector_norm_condition,
)
def vector_norm(
    self: Array, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Array:
    """Returns the p-norm over some dimensions, in the real dtype."""
    if is_integral(self.dtype):
        raise RefusedDtype(
            "linalg.vector_norm: Expected a floating point or complex tensor as input. Got "
            f"{type_name(self.dtype)}"
        )
    dtype = self.dtype if dtype is None else dtype
    if jnp.promote_types(self.dtype, dtype) != dtype:
        raise RefusedDtype(
            f"linalg.vector_norm: the dtype of the input ({type_name(self.dtype)}) should be "
            f"convertible without narrowing to the specified dtype ({type_name(dtype)})"
        )
    if is_complex(self.dtype) != is_complex(dtype):
        raise RefusedDtype(
            "linalg.vector_norm: dtype should be complex for complex inputs and real for real ones"
        )
    result = real_dtype(dtype)
    wide = jnp.promote_types(dtype, jnp.float32)
    x = self.astype(jnp.promote_types(wide, jnp.complex64) if is_complex(self.dtype) else wide)
    axes = wrap_dims(dim, x.ndim)
    return p_norm(x, float(ord), axes, keepdim).astype(result)


def p_norm(x: Array, p: float, axes: tuple[int, ...], keepdim: bool) -> Array:
    """Returns the p-norm of a float or complex array over axes."""
    if p == 2:
        squares = x.real**2 + x.imag**2 if is_complex(x.dtype) else x * x
        return jnp.sqrt(jnp.sum(squares, axis=axes, keepdims=keepdim))
    size = jnp.abs(x)
    if p == 0:
        return jnp.sum(size != 0, axis=axes, keepdims=keepdim, dtype=size.dtype)
    empty = [axis for axis in axes if x.shape[axis] == 0]
    if empty and (p < 0 or p == float("inf")):
        raise RuntimeError(
            f"linalg.vector_norm cannot compute the {p} norm on the dimension {empty[0]} because "
            "this dimension is empty and the operation does not have an identity"
        )
    if p in (float("inf"), float("-inf")):
        return (maximum if p > 0 else minimum)(size, axes, keepdim)
    if p == 1:
        return jnp.sum(size, axis=axes, keepdims=keepdim)
    return jnp.sum(size**p, axis=axes, keepdims=keepdim) ** (1 / p)


@op("linalg__powsum", static=("ord",))
def powsum(
    self: Array, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Array:
    """Returns the sum of the absolute values' powers, from which a norm takes the root."""
    refuse("powsum_cpu", self.dtype if dtype is None else dtype, BOOL, INT)
    if isinstance(ord, complex):
        raise RuntimeError("value cannot be converted to type double without overflow")
    result = real_dtype(self.dtype if dtype is None else dtype)
    size = jnp.abs(self)
    size = size.astype(jnp.promote_types(jnp.promote_types(size.dtype, result), jnp.float32))
    axes = wrap_dims(dim, self.ndim)
    return jnp.sum(size ** float(ord), axis=axes, keepdims=keepdim).astype(result)


@op("norm.Scalar", static=("p",), autocast="float32")
def norm(self: Array, p: Any = 2) -> Array:
    return vector_norm(self, 2 if p is None else p)


@op("norm.ScalarOpt_dtype", static=("p",))
def norm_dtype(self: Array, p: Any, dtype: Any) -> Array:
    return vector_norm(self, 2 if p is None else p, dtype=dtype)


@op("norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", static=("p",))
def norm_dim(self: Array, p: Any, dim: Any, keepdim: bool = False, dtype: Any = None) -> Array:
    return vector_norm(self, 2 if p is None else p, dim, keepdim, dtype)


@op("dist", static=("p",), autocast="float32")
def dist(self: Array, other: Array, p: Any = 2) -> Array:
    return vector_norm(sub(self, other), p)


@op("logsumexp", autocast="float32")
@opmath
def logsumexp(self: Array, dim: Any, keepdim: bool = False) -> Array:
    x = self.astype(to_float(self.dtype))
    axes = wrap_dims(dim, x.ndim)
    unnamed = isinstance(dim, list | tuple) and not dim
    if unnamed and x.ndim and not keepdim:  # PyTorch's sum keeps the axes, its result does not
        ones = [1] * x.ndim
        raise RuntimeError(f"output with shape [] doesn't match the broadcast shape {ones}")
    if is_complex(x.dtype):
        empty = any(x.shape[axis] == 0 for axis in axes)
        top = 0 if empty else maximum(x.real, axes, keepdims=True)
        top = jnp.where(jnp.isfinite(top), top, 0)
        total = jnp.log(jnp.sum(jnp.exp(x - top), axis=axes, keepdims=keepdim))
        return total + (top if keepdim or not top.ndim else jnp.squeeze(top, axes))
    return jax.nn.logsumexp(x, axis=axes, keepdims=keepdim)


facts("all all.dim all.dims any any.dim any.dims", writes=("truth",))
facts("sum.dim_IntList prod.dim_int", writes=("says_dtype",))
facts(
    "frobenius_norm.dim linalg_matrix_norm norm.ScalarOpt_dim nuclear_norm",
    "nuclear_norm.dim",
    autocast="float32",
)
