"""Helpers that several families of rules share."""

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
    """Returns an array in a different dtype, as C casts (complex numbers lose their imaginary
    part)."""
    if dtype == np.bool_:
        return array != 0
    if is_complex(array.dtype) and not is_complex(dtype):
        array = array.real
    if is_float(array.dtype) and is_integral(dtype):
        return _truncated(array, np.dtype(dtype))
    return as_dtype(array, dtype)


def _truncated(x: Array, dtype: np.dtype) -> Array:
    """Casts floats to integers; out-of-range values, which XLA would clamp, are converted as by
    CPUs.

    Small integers are the low bits of an int32, in which an out-of-range value is the lowest
    integer.
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
    """Returns True if a size is a number; sizes in exported programs may be symbolic."""
    return isinstance(size, int | float)


def is_below(size: Any, limit: int) -> bool:
    """Returns True if a size is certainly less than a number."""
    return is_known(size) and size < limit


def greater(a: Any, b: Any) -> Any:
    """Returns the greater of two sizes."""
    return max(a, b) if is_known(a) and is_known(b) else max_dim(a, b)


def first_position(function: Any, x: Array, axis: int, keepdim: bool = False) -> Array:
    """As `jnp.argmax` and `jnp.argmin`, but with 32-bit positions, where these suffice.

    JAX fails to lower 64-bit ones if the caller of a traced program has no 64-bit types.

    Args:
        function: `lax.argmax` or `lax.argmin`.
        x: an array in which the axis is not empty.
    """
    size = x.shape[axis]  # may be symbolic in exports
    is_long = isinstance(size, int) and size >= 1 << 31
    found = function(x, axis % x.ndim, jnp.int64 if is_long else jnp.int32)
    return jnp.expand_dims(found, axis) if keepdim else found


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
    """Returns dimensions counted from the front; None or an empty list mean all of them.

    Raises:
        IndexError: a dimension is out of range.
        RuntimeError: a dimension appears twice, or there are more dimensions than PyTorch supports.
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

    For half precision, the parameters may also be float32.
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
    """Like `jnp.max`, but propagates NaN across devices too (see `nan_of`)."""
    found = jnp.max(x, axis=axes, keepdims=keepdims, **initial)
    return nan_of(found, lambda: jnp.any(jnp.isnan(x), axis=axes, keepdims=keepdims), x.dtype)


def minimum(x: Array, axes: Any = None, keepdims: bool = False, **initial: Any) -> Array:
    """Like `jnp.min`, but propagates NaN across devices too (see `nan_of`)."""
    found = jnp.min(x, axis=axes, keepdims=keepdims, **initial)
    return nan_of(found, lambda: jnp.any(jnp.isnan(x), axis=axes, keepdims=keepdims), x.dtype)


def segment_maximum(x: Array, into: Array, count: int) -> Array:
    """Like `jax.ops.segment_max`, but propagates NaN across devices too (see `nan_of`)."""
    return _of_segments(jax.ops.segment_max, x, into, count)


def segment_minimum(x: Array, into: Array, count: int) -> Array:
    """Like `jax.ops.segment_min`, but propagates NaN across devices too (see `nan_of`)."""
    return _of_segments(jax.ops.segment_min, x, into, count)


def _of_segments(extremum: Callable[..., Array], x: Array, into: Array, count: int) -> Array:
    def is_missing() -> Array:
        return jax.ops.segment_max(jnp.isnan(x).astype(jnp.int32), into, count) > 0

    return nan_of(extremum(x, into, count), is_missing, x.dtype)


def nan_of(found: Array, is_missing: Callable[[], Array], dtype: Any) -> Array:
    """Returns an extremum, NaN if there is a NaN.

    Across devices, XLA compares like C's `fmax`, which ignores NaN, so a sharded dimension would
    lose it. The sharding of arrays is not known here, so this is done if there are several devices.

    Args:
        found: XLA's extremum.
        is_missing: computes where there is a NaN.
        dtype: the dtype of the numbers.
    """
    if not is_float(dtype) or jax.device_count() == 1:
        return found
    return jnp.where(is_missing(), jnp.asarray(jnp.nan, found.dtype), found)


def constant(number: Any, dtype: Any) -> Any:
    """Returns a parameter of a rule, which may be traced, as an array of no dimensions."""
    if isinstance(number, Array):
        return number.astype(dtype)
    with np.errstate(over="ignore"):  # to infinity, as in C
        return np.asarray(number, dtype)
