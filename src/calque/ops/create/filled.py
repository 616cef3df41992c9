"""Operators that create tensors from numbers."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.ops.table.facts import facts
from calque.ops.table.helpers import cast, is_known
from calque.ops.table.number_range import HoldsNew, check_holds
from calque.ops.table.promotion import (
    BOOL,
    COMPLEX,
    MissingDtype,
    RefusedDtype,
    default_complex,
    default_float,
    is_complex,
    is_float,
    is_integral,
    refuse,
    result_type,
    type_name,
)
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import TensorArgument

_INT64 = np.dtype("int64")


def _shape(size: Any) -> tuple[int, ...]:
    if any(n < 0 for n in size):
        raise RuntimeError(f"Trying to create tensor with negative dimension: {list(size)}")
    return tuple(size)


def _saturates(dtype: Any) -> bool:
    """Returns True if PyTorch writes infinity to a tensor without dimensions that cannot hold a
    finite number."""
    return dtype is not None and is_float(dtype) and dtype.itemsize < 4


def _holds_value(self: TensorArgument, value: Any, **_: Any) -> None:
    if self.ndim or not _saturates(self.dtype):
        check_holds(value, self.dtype)


_new_holds = HoldsNew("fill_value", whole=_INT64)


def _full_holds(size: Any, fill_value: Any, dtype: Any = None, out: Any = None, **_: Any) -> None:
    if size or not _saturates(dtype if out is None else out.dtype):
        _new_holds(dtype=dtype, out=out, fill_value=fill_value)


def _scalar_holds(s: Any, dtype: Any = None, **_: Any) -> None:
    if not _saturates(dtype):
        check_holds(s, dtype)


@op("zeros", "_efficientzerotensor")
def zeros(size: Any, dtype: Any = None) -> Array:
    return jnp.zeros(_shape(size), dtype or default_float())


facts("zeros", writes=("fills",))


@op("ones", writes=("fills",))
def ones(size: Any, dtype: Any = None) -> Array:
    return jnp.ones(_shape(size), dtype or default_float())


@op("full", writes=("fills",), numbers=_full_holds)
def full(size: Any, fill_value: Any, dtype: Any = None) -> Array:
    return jnp.full(_shape(size), _number(fill_value, dtype or result_type(fill_value)))


@op("scalar_tensor", numbers=_scalar_holds)
def scalar_tensor(s: Any, dtype: Any = None) -> Array:
    return _number(s, dtype or default_float())


@op("zero", layout="copied", writes_in_place=("fills",))
def zero(self: Array) -> Array:
    return jnp.zeros_like(self)


@op("fill.Scalar", "fill.Tensor", layout="elementwise", writes_in_place=("fills", "computes_first"))
def fill(self: Array, value: Any) -> Array:
    return jnp.broadcast_to(_number(value, self.dtype), self.shape)


facts("fill.Scalar", numbers=_holds_value)


def _number(value: Any, dtype: Any) -> Array:
    array = jnp.asarray(value)
    if array.ndim:
        raise RuntimeError(
            "fill_ only supports 0-dimension value tensor but got tensor with "
            f"{array.ndim} dimensions."
        )
    return cast(array, dtype)


# Sequences ----------------------------------------------------------------------------------------


def _sequence(start: Any, end: Any, step: Any, dtype: Any, closed: bool) -> Array:
    if dtype is not None:
        refuse("range_cpu" if closed else "arange_cpu", dtype, BOOL, COMPLEX)
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if (end - start) * step < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    if dtype is None:
        whole = all(isinstance(x, int) or not is_known(x) for x in (start, end, step))
        dtype = np.dtype("int64") if whole else default_float()
    if dtype == np.int64:
        start, end, step = (int(x) if is_known(x) else x for x in (start, end, step))
        count = -((start - end) // step)
    elif not all(map(is_known, (start, end, step))):
        count = -((start - end) // step)
    else:  # the count is computed before integers are rounded
        count = math.ceil((end - start) / step)
        if is_integral(dtype):
            start, step = int(start), int(step)
    if closed:
        count = math.floor((end - start) / step) + 1
    exact = np.dtype("int64") if is_integral(dtype) else np.dtype("float64")
    narrow = jnp.promote_types(dtype, jnp.float32) if exact == np.float64 else dtype
    index = lax.iota(narrow, count)
    if start == 0 and step == 1:
        return index.astype(dtype)
    asarray = np.asarray if is_known(start) and is_known(step) else jnp.asarray
    with np.errstate(over="ignore"):
        step, start = (asarray(x, exact).astype(narrow) for x in (step, start))
    values = index * step + start if count > 1 else start + jnp.zeros_like(index)
    return values.astype(dtype)


def _ends(dtype: Any = None, out: Any = None, start: Any = 0, end: Any = 0, **_: Any) -> None:
    """Raise if integers, which make integers unless a dtype is given, are too large."""
    if dtype is None and out is None and isinstance(start, int) and isinstance(end, int):
        check_holds(start, np.dtype("int64"))
        check_holds(end, np.dtype("int64"))


@op("arange", static=("end",), writes=("no_booleans", "any_shape"), numbers=_ends)
def arange(end: Any, dtype: Any = None) -> Array:
    return _sequence(0, end, 1, dtype, closed=False)


@op(
    "arange.start",
    static=("start", "end"),
    writes=("no_booleans", "any_shape"),
    numbers=_ends,
)
def arange_start(start: Any, end: Any, dtype: Any = None) -> Array:
    return _sequence(start, end, 1, dtype, closed=False)


def _steps(step: Any = 1, out: TensorArgument | None = None, **_: Any) -> None:
    """Raise if the step becomes zero in the dtype of an `out=`."""
    if out is not None and step and not out.is_float and int(step) == 0:
        raise ValueError("step must be nonzero")


@op(
    "arange.start_step",
    static=("start", "end", "step"),
    writes=("no_booleans", "any_shape"),
    numbers=_steps,
)
def arange_step(start: Any, end: Any, step: Any = 1, dtype: Any = None) -> Array:
    return _sequence(start, end, step, dtype, closed=False)


@op("range", "range.step", static=("start", "end", "step"), writes=("any_shape",))
def range_step(start: Any, end: Any, step: Any = 1, dtype: Any = None) -> Array:
    return _sequence(start, end, step, dtype or default_float(), closed=True)


def _space_dtype(start: Any, end: Any, dtype: Any, name: str) -> Any:
    either = is_complex(jnp.asarray(start).dtype) or is_complex(jnp.asarray(end).dtype)
    if dtype is not None:
        if either and not is_complex(dtype):
            raise RefusedDtype(
                f"torch.{name}(): inferred dtype {type_name(default_complex())} can't be safely "
                f"cast to passed dtype {type_name(dtype)}"
            )
        return dtype
    return default_complex() if either else default_float()


def _linear(start: Any, end: Any, steps: int, dtype: Any) -> Array:
    """Returns `steps` evenly spaced numbers, each computed from the nearer end."""
    if steps < 0:
        raise RuntimeError("number of steps must be non-negative")
    wide = jnp.promote_types(dtype, jnp.float32) if not is_integral(dtype) else jnp.float64
    first, last = (_number(bound, dtype).astype(wide) for bound in (start, end))
    if steps == 1:
        return first.reshape(1)
    # XLA would multiply by the reciprocal of a constant, which rounds twice.
    step = (last - first) / lax.optimization_barrier(jnp.asarray(max(steps - 1, 1), wide))
    index = jnp.arange(steps)
    low = first + step * index.astype(wide)
    high = last - step * (steps - 1 - index).astype(wide)
    return jnp.where(index < steps // 2, low, high)


SPACE = ("", ".Tensor_Tensor", ".Tensor_Scalar", ".Scalar_Tensor")


@op(
    *(f"linspace{overload}" for overload in SPACE),
    writes=("any_shape",),
    numbers=HoldsNew("start", "end"),
)
def linspace(start: Any, end: Any, steps: int, dtype: Any = None) -> Array:
    dtype = _space_dtype(start, end, dtype, "linspace")
    refuse("linspace_cpu", dtype, BOOL)
    return _linear(start, end, steps, dtype).astype(dtype)


@op(*(f"logspace{overload}" for overload in SPACE), dynamic=("base",), writes=("any_shape",))
def logspace(start: Any, end: Any, steps: int, base: Any = 10.0, dtype: Any = None) -> Array:
    dtype = _space_dtype(start, end, dtype, "logspace")
    refuse("logspace_cpu", dtype, BOOL)
    exponent = _linear(start, end, steps, dtype)
    return cast(jnp.power(jnp.asarray(base).astype(exponent.dtype), exponent), dtype)


# Matrices -----------------------------------------------------------------------------------------


@op("eye", writes=("fills",))
def eye(n: int, dtype: Any = None) -> Array:
    return eye_m(n, n, dtype)


@op("eye.m", writes=("fills",))
def eye_m(n: int, m: int, dtype: Any = None) -> Array:
    for name, size in (("n", n), ("m", m)):
        if size < 0:
            raise RuntimeError(f"{name} must be greater or equal to 0, got {size}")
    return jnp.eye(n, m, dtype=dtype or default_float())


def _up_to(last: int, columns: int) -> int:
    """Returns the sum of 1, 2, ..., `last`, with each term at most `columns`."""
    ramp = max(min(last, columns), 0)
    return ramp * (ramp + 1) // 2 + max(last - columns, 0) * columns


def _places(rows: int, first: Array, counts: Array, size: int, dtype: Any) -> Array:
    """Returns the rows and columns of runs of elements, one run in each row."""
    row = jnp.repeat(jnp.arange(rows), counts, total_repeat_length=size)
    before = jnp.cumsum(counts) - counts
    column = jnp.arange(size) - before[row] + first[row]
    return jnp.stack([row, column]).astype(dtype or jnp.int64)


def _indices_condition(row: int, col: int, offset: int = 0, dtype: Any = None, **_: Any) -> None:
    for name, n in (("row", row), ("col", col)):
        if n < 0:
            raise RuntimeError(f"{name} must be non-negative, got {n}")
    if dtype is not None and dtype not in (np.int32, np.int64):
        raise RefusedDtype(f"indices are not implemented for '{type_name(dtype)}'")


@op("tril_indices", condition=_indices_condition)
def tril_indices(row: int, col: int, offset: int = 0, dtype: Any = None) -> Array:
    size = _up_to(offset + row, col) - _up_to(offset, col)
    counts = jnp.clip(jnp.arange(row) + offset + 1, 0, col)
    return _places(row, jnp.zeros_like(counts), counts, size, dtype)


@op("triu_indices", condition=_indices_condition)
def triu_indices(row: int, col: int, offset: int = 0, dtype: Any = None) -> Array:
    size = row * col - (_up_to(offset - 1 + row, col) - _up_to(offset - 1, col))
    first = jnp.clip(jnp.arange(row) + offset, 0, col)
    return _places(row, first, col - first, size, dtype)


# Windows ------------------------------------------------------------------------------------------


@op("kaiser_window")
def kaiser_window(window_length: int, dtype: Any = None) -> Array:
    return kaiser_window_beta(window_length, True, 12.0, dtype)


@op("kaiser_window.periodic")
def kaiser_window_periodic(window_length: int, periodic: bool, dtype: Any = None) -> Array:
    return kaiser_window_beta(window_length, periodic, 12.0, dtype)


@op("kaiser_window.beta")
def kaiser_window_beta(window_length: int, periodic: bool, beta: float, dtype: Any = None) -> Array:
    """PyTorch has a kernel for this window; it composes the others from operators."""
    dtype = dtype or default_float()
    if window_length < 0:
        raise RuntimeError(
            f"kaiser_window requires non-negative window_length, got window_length={window_length}"
        )
    if is_integral(dtype):
        raise RuntimeError(f"kaiser_window expects floating point dtypes, got: {type_name(dtype)}")
    if window_length <= 1:
        return jnp.ones((window_length,), dtype)
    wide = jnp.promote_types(dtype, jnp.float32)
    last = window_length - (not periodic)
    at = jnp.arange(window_length, dtype=wide) * (2 / last) - 1
    scale = jnp.asarray(beta, wide)
    return (
        jax.scipy.special.i0(scale * jnp.sqrt((1 - at) * (1 + at))) / jax.scipy.special.i0(scale)
    ).astype(dtype)


# Complex numbers from their parts -----------------------------------------------------------------


def _same_floats(name: str, x: Array, y: Array) -> None:
    if x.dtype != y.dtype or x.dtype not in (jnp.float32, jnp.float64, jnp.float16):
        raise RefusedDtype(
            f"Expected both inputs of {name} to be Half, Float or Double tensors of one dtype but "
            f"got {type_name(x.dtype)} and {type_name(y.dtype)}"
        )


@op("complex", layout="elementwise", writes=("exact_dtype",))
def complex_(real: Array, imag: Array) -> Array:
    _same_floats("complex", real, imag)
    if real.dtype == jnp.float16:
        raise MissingDtype("complex32")
    real, imag = jnp.broadcast_arrays(real, imag)
    return lax.complex(real, imag)


@op("polar", layout="elementwise", writes=("exact_dtype",))
def polar(abs: Array, angle: Array) -> Array:
    _same_floats("polar", abs, angle)
    if abs.dtype == jnp.float16:
        raise MissingDtype("complex32")
    size, angle = jnp.broadcast_arrays(abs, angle)
    return lax.complex(size * jnp.cos(angle), size * jnp.sin(angle))
