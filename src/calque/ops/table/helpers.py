"""Small helpers that several families of rules share."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import max_dim

from calque.ops.table.promotion import as_dtype, is_complex, is_float, is_integral, type_name

Dims = int | list[int] | tuple[int, ...] | None


def names(text: str) -> list[str]:
    """Returns the words of a table of names."""
    return text.split()


def cast(array: Array, dtype: np.dtype) -> Array:
    """Returns an array in another dtype, as C casts (complex numbers lose their imaginary part)."""
    if dtype == np.bool_:
        return array != 0
    if is_complex(array.dtype) and not is_complex(dtype):
        array = array.real
    if is_float(array.dtype) and is_integral(dtype):
        return _truncated(array, np.dtype(dtype))
    return as_dtype(array, dtype)


def _truncated(x: Array, dtype: np.dtype) -> Array:
    """Casts floats to integers, out-of-range ones as CPUs do: undefined in C, clamped by XLA.

    Small integers are the low bits of an int32, in which a number out of range is the lowest one.
    """
    x = x.astype(np.float32) if x.dtype.itemsize < 4 else x
    bits = 8 * max(dtype.itemsize, 4)
    signed, limit = np.dtype(f"int{bits}"), 2.0 ** (bits - 1)
    held = (x >= -limit) & (x < limit)
    found = jnp.where(held, x, 0).astype(signed)
    found = jnp.where(held, found, np.iinfo(signed).min).astype(dtype)
    if dtype.itemsize < 4 or dtype.kind == "i":
        return found
    above = jnp.where(x < 2 * limit, x, 0).astype(dtype)
    return jnp.where(x >= limit, above, found)


def is_known(size: Any) -> bool:
    """Returns True if a size is a number; sizes in exported programs may be symbols of JAX."""
    return isinstance(size, int | float)


def is_below(size: Any, limit: int) -> bool:
    """Returns True if a size is certainly less than a number."""
    return is_known(size) and size < limit


def greater(a: Any, b: Any) -> Any:
    """Returns the greater of two sizes."""
    return max(a, b) if is_known(a) and is_known(b) else max_dim(a, b)


def wrap_dim(dim: int, ndim: int) -> int:
    """Returns a dimension counted from the front.

    Raises:
        IndexError: the dimension is out of range, in PyTorch's words.
    """
    span = max(ndim, 1)
    if not -span <= dim < span:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-span}, {span - 1}], "
            f"but got {dim})"
        )
    return dim % span


def wrap_dims(dims: Any, ndim: int) -> tuple[int, ...]:
    """Dimensions counted from the front; None or an empty list stand for all of them.

    Raises:
        IndexError: a dimension is out of range.
        RuntimeError: a dimension appears twice, or there are more than PyTorch reduces.
    """
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return tuple(range(ndim))
    if isinstance(dims, int):
        dims = (dims,)
    wrapped = tuple(wrap_dim(dim, ndim) for dim in dims)
    if ndim > 64:
        raise RuntimeError("only tensors with up to 64 dims are supported")
    if len(set(wrapped)) != len(wrapped):
        raise RuntimeError("dim appears multiple times in the list of dims")
    return () if ndim == 0 else wrapped


def check_parameters(input: Any, *parameters: Any) -> None:
    """Raise RuntimeError unless a normalization's parameters have the dtype of its input.

    Half precision takes parameters of float32 too.
    """
    for parameter in parameters:
        if parameter is None or parameter.dtype == input.dtype:
            continue
        if input.dtype not in (np.dtype("float16"), jnp.bfloat16) or parameter.dtype != jnp.float32:
            raise RuntimeError(
                "mixed dtype (CPU): expect parameter to have scalar type of "
                f"{type_name(input.dtype)}"
            )


def maximum(x: Array, axes: Any = None, keepdims: bool = False, **initial: Any) -> Array:
    """`jnp.max`, which gives NaN where there is one on whatever device (see `nan_of`)."""
    found = jnp.max(x, axis=axes, keepdims=keepdims, **initial)
    return nan_of(found, lambda: jnp.any(jnp.isnan(x), axis=axes, keepdims=keepdims), x.dtype)


def minimum(x: Array, axes: Any = None, keepdims: bool = False, **initial: Any) -> Array:
    """`jnp.min`, which gives NaN where there is one on whatever device (see `nan_of`)."""
    found = jnp.min(x, axis=axes, keepdims=keepdims, **initial)
    return nan_of(found, lambda: jnp.any(jnp.isnan(x), axis=axes, keepdims=keepdims), x.dtype)


def segment_maximum(x: Array, into: Array, count: int) -> Array:
    """`jax.ops.segment_max`, which gives NaN where there is one on whatever device (`nan_of`)."""
    return _of_segments(jax.ops.segment_max, x, into, count)


def segment_minimum(x: Array, into: Array, count: int) -> Array:
    """`jax.ops.segment_min`, which gives NaN where there is one on whatever device (`nan_of`)."""
    return _of_segments(jax.ops.segment_min, x, into, count)


def _of_segments(extremum: Callable[..., Array], x: Array, into: Array, count: int) -> Array:
    def is_missing() -> Array:
        return jax.ops.segment_max(jnp.isnan(x).astype(jnp.int32), into, count) > 0

    return nan_of(extremum(x, into, count), is_missing, x.dtype)


def nan_of(found: Array, is_missing: Callable[[], Array], dtype: Any) -> Array:
    """Returns an extremum of numbers that may be NaN.

    Between devices XLA compares as C's `fmax` does, to which NaN is no number: a dimension that is
    split would lose it. How arrays lie is not known here, so it counts how many devices there are.

    Args:
        found: the extremum as XLA finds it.
        is_missing: gives where NaN is among the numbers.
        dtype: of the numbers.
    """
    if not is_float(dtype) or jax.device_count() == 1:
        return found
    return jnp.where(is_missing(), jnp.asarray(jnp.nan, found.dtype), found)
