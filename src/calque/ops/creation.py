"""Operators that make tensors from nothing, and random ones."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.dtypes import default_float
from calque.ops.registry import op


@op("zeros")
def zeros(size: Any, dtype: Any = None) -> Array:
    return jnp.zeros(size, dtype or default_float())


@op("ones")
def ones(size: Any, dtype: Any = None) -> Array:
    return jnp.ones(size, dtype or default_float())


@op("zero")
def zero(self: Array) -> Array:
    return jnp.zeros_like(self)


@op("fill.Scalar", "fill.Tensor")
def fill(self: Array, value: Any) -> Array:
    return jnp.broadcast_to(jnp.asarray(value).astype(self.dtype), self.shape)


@op("uniform", random=True, dynamic=("from", "to"))
def uniform(key: Array, self: Array, *bounds: Any, **named: Any) -> Array:
    low, high = [*bounds, named.get("from", 0.0), named.get("to", 1.0)][:2]
    unit = jax.random.uniform(key, self.shape, np.float64 if self.dtype == np.float64 else np.float32)
    return (unit * (high - low) + low).astype(self.dtype)
