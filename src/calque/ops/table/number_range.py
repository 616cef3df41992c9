"""Whether a dtype can hold a number, as PyTorch's C++ converts it."""

import math
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from calque.ops.table.promotion import is_complex, is_float


def _overflows(value: Any, dtype: Any) -> bool:
    """Whether a dtype cannot hold a Python number, as C++ converts it."""
    if isinstance(value, complex):
        return not is_complex(dtype) and value.imag != 0
    if dtype == np.bool_ or is_complex(dtype) or not isinstance(value, int | float):
        return False
    if not math.isfinite(value):
        return not is_float(dtype)
    if is_float(dtype):
        return abs(value) > float(jnp.finfo(dtype).max)
    limit = jnp.iinfo(dtype)
    return value > limit.max or value < (limit.min or -limit.max)


def check_holds(value: Any, dtype: Any) -> None:
    """Raise RuntimeError where a dtype cannot hold a number, as far as the number is known."""
    if isinstance(value, bool | int | float | complex):
        _check_holds(value, dtype)


@lru_cache(maxsize=4096, typed=True)
def _check_holds(value: Any, dtype: Any) -> None:
    if dtype is not None and _overflows(value, dtype):
        raise RuntimeError(f"value cannot be converted to type torch.{dtype} without overflow")
