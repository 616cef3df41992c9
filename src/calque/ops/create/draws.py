"""Random numbers of a dtype, drawn from a JAX key: what the random operators share."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.ops.table.promotion import is_complex, is_integral, real_dtype


def working(dtype: Any) -> np.dtype:
    """Returns the dtype to draw floats in: float64 for float64, otherwise float32."""
    return np.dtype("float64" if real_dtype(dtype) == np.float64 else "float32")


def uniform_numbers(key: Array, shape: Any, dtype: Any) -> Array:
    """Returns numbers in [0, 1), even after rounding to a half-precision dtype."""
    if is_complex(dtype):
        parts = jax.random.uniform(key, (2, *shape), working(dtype))
        return lax.complex(parts[0], parts[1])
    unit = jax.random.uniform(key, shape, working(dtype))
    if dtype in (jnp.float16, jnp.bfloat16):
        digits = 2.0 ** (jnp.finfo(dtype).nmant + 1)
        unit = jnp.floor(unit * digits) / digits
    return unit


def standard_normal(key: Array, shape: Any, dtype: Any) -> Array:
    """Returns normal numbers of mean 0 and variance 1, in float32 for half-precision dtypes."""
    if is_complex(dtype):
        parts = jax.random.normal(key, (2, *shape), working(dtype)) * np.sqrt(0.5)
        return lax.complex(parts[0], parts[1])
    return jax.random.normal(key, shape, working(dtype))


def normal_numbers(key: Array, shape: Any, dtype: Any, mean: Any, std: Any) -> Array:
    """Returns normal numbers; the mean is that of the real and of the imaginary parts."""
    if is_complex(dtype):
        part = jnp.asarray(mean).astype(real_dtype(dtype))
        mean = lax.complex(part, part)
    return (standard_normal(key, shape, dtype) * std + mean).astype(dtype)


def floats_only(name: str, dtype: Any) -> None:
    """Raise NotImplementedError, naming PyTorch's kernel, for integers and booleans."""
    if is_integral(dtype):
        raise NotImplementedError(f"\"{name}\" not implemented for '{np.dtype(dtype).name}'")
