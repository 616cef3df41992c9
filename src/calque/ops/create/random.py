"""Random operators: each draws from the JAX key it is given.

The numbers are JAX's, not those of PyTorch's generators for the same seed. Parameters of
distributions are traced, so a new value needs no new executable.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.create.draws import (
    floats_only,
    normal_numbers,
    standard_normal,
    uniform_numbers,
    working,
)
from calque.ops.create.random_checks import (
    NO_BOUNDS,
    NO_PROBABILITY,
    dropout_probability,
    finite_range,
    in_order,
    integers_in_order,
    is_probability,
    known_size,
    none_below,
    positive,
    probability,
    representable,
    representable_sized,
    spread,
    success,
)
from calque.ops.table.facts import facts, no_kernel, senseless
from calque.ops.table.number_range import HoldsNew
from calque.ops.table.promotion import (
    BOOL,
    COMPLEX,
    INT,
    RefusedDtype,
    default_float,
    is_complex,
    is_integral,
    opmath,
    refuse,
    to_float,
    type_name,
)
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import each

# What PyTorch raises for parameters outside their range -------------------------------------------

INT64 = np.dtype("int64")


# Draws --------------------------------------------------------------------------------------------


@op("rand", "rand.generator", random=True, condition=known_size)
def rand(key: Array, size: Any, dtype: Any = None) -> Array:
    dtype = dtype or default_float()
    floats_only("check_uniform_bounds", dtype)
    return uniform_numbers(key, tuple(size), dtype).astype(dtype)


facts("rand", like="rand_like")


@op("randn", "randn.generator", random=True, condition=known_size)
def randn(key: Array, size: Any, dtype: Any = None) -> Array:
    dtype = dtype or default_float()
    floats_only("normal_kernel_cpu", dtype)
    return standard_normal(key, tuple(size), dtype).astype(dtype)


facts("randn", like="randn_like")


@op(
    "uniform",
    random=True,
    layout="copied",
    dynamic=("from", "to"),
    check=in_order("uniform_"),
    numbers=finite_range,
)
def uniform(key: Array, self: Array, from_: Any = 0.0, to: Any = 1.0) -> Array:
    floats_only("check_uniform_bounds", self.dtype)
    unit = uniform_numbers(key, self.shape, self.dtype)
    return (unit * (to - from_) + from_).astype(self.dtype)


@op(
    "normal_functional",
    random=True,
    layout="copied",
    dynamic=("mean", "std"),
    check=spread,
    in_place="normal_",
)
def normal(key: Array, self: Array, mean: Any = 0.0, std: Any = 1.0) -> Array:
    floats_only("normal_kernel_cpu", self.dtype)
    return normal_numbers(key, self.shape, self.dtype, mean, std)


def _normal_of(key: Array, mean: Any, std: Any, dtype: Any) -> Array:
    if is_complex(jnp.asarray(std).dtype):
        raise RuntimeError("normal expects standard deviation to be non-complex")
    refuse("normal_kernel_cpu", dtype, BOOL, INT)
    shape = jnp.broadcast_shapes(jnp.shape(mean), jnp.shape(std))
    return (standard_normal(key, shape, dtype) * std + mean).astype(dtype)


@op(
    "normal.Tensor_Tensor",
    "normal.Tensor_float",
    random=True,
    dynamic=("mean", "std"),
    check=spread,
)
def normal_around(key: Array, mean: Array, std: Any = 1.0) -> Array:
    return _normal_of(key, mean, std, mean.dtype)


@op("normal.float_Tensor", random=True, dynamic=("mean", "std"), check=spread)
def normal_spread(key: Array, mean: Any, std: Array) -> Array:
    return _normal_of(key, mean, std, std.dtype)


facts(
    "normal.float_Tensor normal.Tensor_Tensor",
    values=each("std", none_below, RuntimeError, "normal expects all elements of std >= 0.0"),
)


@op("normal.float_float", random=True, dynamic=("mean", "std"), check=spread)
def normal_sized(key: Array, mean: Any, std: Any, size: Any, dtype: Any = None) -> Array:
    dtype = dtype or default_float()
    floats_only("normal_kernel_cpu", dtype)
    return normal_numbers(key, tuple(size), dtype, mean, std)


@op(
    "log_normal",
    random=True,
    layout="copied",
    dynamic=("mean", "std"),
    check=positive("log_normal_", "std"),
)
def log_normal(key: Array, self: Array, mean: Any = 1.0, std: Any = 2.0) -> Array:
    floats_only("log_normal", self.dtype)
    return jnp.exp(standard_normal(key, self.shape, self.dtype) * std + mean).astype(self.dtype)


@op(
    "exponential",
    random=True,
    layout="copied",
    dynamic=("lambd",),
    check=positive("exponential_", "lambd"),
    refuses=(
        senseless("its dtype must be a floating point but you specified an integer", BOOL, INT),
        senseless("its dtype must be a floating point but you specified a complex one", COMPLEX),
    ),
)
def exponential(key: Array, self: Array, lambd: Any = 1.0) -> Array:
    floats_only("exponential", self.dtype)
    drawn = jax.random.exponential(key, self.shape, working(self.dtype))
    drawn = jnp.where(drawn == 0, jnp.finfo(drawn.dtype).eps / 2, drawn)  # others divide by it
    return (drawn / lambd).astype(self.dtype)


@op(
    "cauchy",
    random=True,
    layout="copied",
    dynamic=("median", "sigma"),
    check=positive("cauchy_", "sigma"),
)
def cauchy(key: Array, self: Array, median: Any = 0.0, sigma: Any = 1.0) -> Array:
    floats_only("cauchy", self.dtype)
    drawn = jax.random.cauchy(key, self.shape, working(self.dtype))
    return (drawn * sigma + median).astype(self.dtype)


@op("geometric", random=True, layout="copied", dynamic=("p",), check=success)
def geometric(key: Array, self: Array, p: Any) -> Array:
    unit = 1 - jax.random.uniform(key, self.shape, working(self.dtype))
    count = jnp.ceil(jnp.log(unit) / jnp.log1p(-p))
    return jnp.maximum(count, 1).astype(self.dtype)


# Bernoulli ----------------------------------------------------------------------------------------


def _coins(key: Array, shape: Any, p: Any) -> Array:
    dtype = working(getattr(p, "dtype", np.float32))
    return jax.random.uniform(key, shape, dtype) < jnp.asarray(p).astype(dtype)


@op(
    "bernoulli",
    random=True,
    values=each("self", is_probability, RuntimeError, NO_PROBABILITY),
    writes=("any_real",),
)
def bernoulli(key: Array, self: Array) -> Array:
    floats_only("bernoulli_tensor_cpu_self_", self.dtype)
    return _coins(key, self.shape, self).astype(self.dtype)


@op("bernoulli.p", random=True, dynamic=("p",), check=probability, in_place="bernoulli_.float")
def bernoulli_p(key: Array, self: Array, p: Any = 0.5) -> Array:
    return _coins(key, self.shape, jnp.asarray(p, jnp.float32)).astype(self.dtype)


@op(
    "bernoulli.Tensor",
    random=True,
    layout="copied",
    values=each("p", is_probability, RuntimeError, NO_PROBABILITY),
)
def bernoulli_tensor(key: Array, self: Array, p: Array) -> Array:
    refuse("bernoulli_tensor_cpu_p_", p.dtype, BOOL, INT, COMPLEX)
    return _coins(key, self.shape, p).astype(self.dtype)


@op(
    "native_dropout",
    random=True,
    dynamic=("p",),
    check=dropout_probability,
    layout="elementwise",
    refuses=(
        senseless("result type Float can't be cast to an integer type", BOOL, INT),
        no_kernel("bernoulli_scalar_cpu_", COMPLEX),
    ),
)
def native_dropout(key: Array, input: Array, p: Any, train: bool | None) -> tuple[Array, Array]:
    if train is False:
        return input, jnp.ones(input.shape, jnp.bool_)
    keep = jnp.asarray(1 - p, jnp.float32)
    mask = _coins(key, input.shape, keep)
    share = jnp.asarray(1 - p, _dtype_of_scale(input.dtype))
    scale = jnp.where(keep == 0, 0, 1 / jnp.where(keep == 0, 1, share))
    return _scaled(input, mask, scale), mask


@op("native_dropout_backward", dynamic=("scale",))
def native_dropout_backward(grad_output: Array, mask: Array, scale: Any) -> Array:
    grad = grad_output.astype(to_float(grad_output.dtype))
    return _scaled(grad, mask != 0, jnp.asarray(scale, _dtype_of_scale(grad.dtype)))


def _dtype_of_scale(dtype: Any) -> Any:
    return jnp.float64 if dtype == jnp.float64 else jnp.float32


@opmath
def _scaled(x: Array, mask: Array, scale: Array) -> Array:
    return jnp.where(mask, x * scale.astype(x.dtype), jnp.zeros((), x.dtype))


# Integers -----------------------------------------------------------------------------------------


def _integers(key: Array, shape: Any, low: Any, high: Any, dtype: Any) -> Array:
    if is_complex(dtype):
        raise RefusedDtype(NO_BOUNDS)
    small = is_integral(dtype, include_bool=False) and np.dtype(dtype).itemsize < 8
    drawn_in = jnp.int32 if small and np.dtype(dtype) != np.uint32 else jnp.int64
    low, high = jnp.asarray(low).astype(drawn_in), jnp.asarray(high).astype(drawn_in)
    return jax.random.randint(key, shape, low, high, drawn_in).astype(dtype)


_randint: dict[str, Any] = {
    "random": True,
    "dynamic": ("low", "high"),
    "check": integers_in_order,
    "numbers": representable_sized,
}


@op("randint", "randint.generator", **_randint)
def randint(key: Array, high: Any, size: Any, dtype: Any = INT64) -> Array:
    return randint_low(key, 0, high, size, dtype)


@op("randint.low", "randint.low_generator", **_randint)
def randint_low(key: Array, low: Any, high: Any, size: Any, dtype: Any = INT64) -> Array:
    return _integers(key, tuple(size), low, high, dtype or INT64)


def _largest(dtype: Any) -> int:
    """Returns the end of the range of `random_()`, in which the dtype holds all integers
    exactly."""
    if dtype == jnp.bool_:
        return 2
    if is_integral(dtype):
        return min(int(jnp.iinfo(dtype).max) + 1, 2**63 - 1)
    return 2 ** (jnp.finfo(dtype).nmant + 1) + 1


@op("random", random=True, layout="copied")
def random(key: Array, self: Array) -> Array:
    if is_complex(self.dtype):
        raise RefusedDtype(f'"random_kernel_cpu" not implemented for {type_name(self.dtype)}')
    return _integers(key, self.shape, 0, _largest(self.dtype), jnp.int64).astype(self.dtype)


@op(
    "random.to",
    random=True,
    layout="copied",
    dynamic=("to",),
    check=integers_in_order,
    numbers=representable,
)
def random_to(key: Array, self: Array, to: Any) -> Array:
    return _integers(key, self.shape, 0, to, jnp.int64).astype(self.dtype)


@op(
    "random.from",
    random=True,
    layout="copied",
    dynamic=("from", "to"),
    check=integers_in_order,
    compares_numbers=True,
    numbers=representable,
)
def random_from(key: Array, self: Array, from_: Any, to: Any) -> Array:
    high = _largest(self.dtype) if to is None else to
    return _integers(key, self.shape, from_, high, jnp.int64).astype(self.dtype)


@op(
    "randperm",
    "randperm.generator",
    random=True,
    writes=("no_booleans",),
    numbers=HoldsNew("n", dtype=INT64),
)
def randperm(key: Array, n: int, dtype: Any = INT64) -> Array:
    if n < 0:
        raise RuntimeError(f"n must be non-negative, got {n}")
    refuse("randperm", dtype or INT64, BOOL, COMPLEX)
    return jax.random.permutation(key, n).astype(dtype or INT64)
