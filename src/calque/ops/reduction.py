"""Reductions: sums, means, extrema, norms, and their positions."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from calque.ops.dtypes import is_integral
from calque.ops.registry import op


@op("sum", "sum.dim_IntList")
def sum(self: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
    if dtype is None:
        dtype = jnp.int64 if is_integral(self.dtype) else self.dtype
    axes = tuple(dim) if dim else None
    return jnp.sum(self.astype(dtype), axis=axes, keepdims=keepdim)
