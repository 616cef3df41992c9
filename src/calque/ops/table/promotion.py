"""PyTorch's type promotion, over JAX arrays.

A rule sees arrays and Python scalars. PyTorch sorts operands into three ranks: tensors with
dimensions, tensors without, and Python numbers. A lower rank decides only when it is of a higher
category (bool < integer < float < complex) than every rank above it. A Python number that reaches
a rule as a traced argument is a weakly typed 0-d array and counts as a number.
"""

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

Scalar = bool | int | float | complex

_local = threading.local()
BOOL, INT, FLOAT, COMPLEX = _BOOL, _INT, _FLOAT, _COMPLEX = range(4)
HALF = 4  # float16 and bfloat16, which are also FLOAT
_HALF = (np.dtype("float16"), np.dtype(jnp.bfloat16))
_COMPLEX_OF = {
    np.dtype("float16"): np.dtype("complex64"),
    np.dtype("bfloat16"): np.dtype("complex64"),
    np.dtype("float32"): np.dtype("complex64"),
    np.dtype("float64"): np.dtype("complex128"),
}
_LARGEST_SIGNED = 2**63 - 1
_WIDE_UNSIGNED = frozenset(map(np.dtype, ("uint16", "uint32", "uint64")))
_REAL_OF = {np.dtype("complex64"): np.dtype("float32"), np.dtype("complex128"): np.dtype("float64")}


@contextlib.contextmanager
def default_float_scope(dtype: np.dtype) -> Iterator[None]:
    """Set the result of `default_float` while a rule is traced."""
    previous = getattr(_local, "default_float", None)
    _local.default_float = dtype
    try:
        yield
    finally:
        _local.default_float = previous


def default_float() -> np.dtype:
    """Returns the dtype of float results that no operand decides: torch.get_default_dtype()."""
    return getattr(_local, "default_float", None) or np.dtype("float32")


def default_complex() -> np.dtype:
    """Returns the complex dtype of the same precision as `default_float`."""
    return _COMPLEX_OF[default_float()]


@functools.lru_cache(maxsize=1024)
def category(dtype: Any) -> int:
    """Returns 0 for bool, 1 for integers, 2 for floats, 3 for complex numbers."""
    if dtype == jnp.bool_:
        return _BOOL
    if jnp.issubdtype(dtype, jnp.integer):
        return _INT
    return _COMPLEX if jnp.issubdtype(dtype, jnp.complexfloating) else _FLOAT


def is_float(dtype: Any) -> bool:
    """Returns True if a dtype is a real floating-point type (fp8 and bfloat16 included)."""
    return category(dtype) == _FLOAT


def is_complex(dtype: Any) -> bool:
    """Returns True if a dtype is complex."""
    return category(dtype) == _COMPLEX


def is_integral(dtype: Any, include_bool: bool = True) -> bool:
    """Returns True if a dtype is an integer type, or bool if `include_bool`."""
    return category(dtype) == _INT or (include_bool and category(dtype) == _BOOL)


def real_dtype(dtype: Any) -> np.dtype:
    """Returns the dtype of the real part: complex64 -> float32; a real dtype is its own."""
    return _REAL_OF.get(np.dtype(dtype), np.dtype(dtype))


def complex_dtype(dtype: Any) -> np.dtype:
    """Returns the complex dtype that holds a real dtype: float32 -> complex64.

    Raises:
        RuntimeError: as in PyTorch, which has none for floats of eight bits.
    """
    if is_float(dtype) and np.dtype(dtype).itemsize == 1:
        raise RuntimeError(f"Unknown Complex ScalarType for {type_name(np.dtype(dtype))}")
    return _COMPLEX_OF.get(np.dtype(dtype), np.dtype(dtype))


def _number_dtype(value: Any) -> np.dtype:
    if isinstance(value, bool | np.bool_):
        return np.dtype(bool)
    if isinstance(value, int | np.integer):
        return np.dtype("uint64" if value > _LARGEST_SIGNED else "int64")
    return default_complex() if isinstance(value, complex) else default_float()


def _rank_and_dtype(value: Any) -> tuple[int, np.dtype]:
    if not hasattr(value, "dtype"):
        return 2, _number_dtype(value)
    if getattr(value, "weak_type", False):
        kind = category(value.dtype)
        if value.dtype == np.uint64:  # a number that int64 cannot hold
            return 2, value.dtype
        return 2, (np.dtype(bool), np.dtype("int64"), default_float(), default_complex())[kind]
    return (1 if value.ndim == 0 else 0), np.dtype(value.dtype)


def promote_types(a: Any, b: Any) -> np.dtype:
    """Like `torch.promote_types`: uint8 with int8 is int16, an integer with a float is the float.

    Raises:
        RuntimeError: as in PyTorch, which has no common dtype of uint16, uint32 or uint64 and
            another that is not floating-point, nor of a float of eight bits and another.
    """
    a, b = np.dtype(a), np.dtype(b)
    if a == b:
        return a
    _check_promoted(a, b)
    low, high = sorted((a, b), key=category)
    if category(low) != category(high):
        if category(high) == _COMPLEX and category(low) == _FLOAT:
            return promote_types(complex_dtype(low), high)
        return high
    if {a.name, b.name} == {"float16", "bfloat16"}:
        return np.dtype("float32")
    return np.dtype(jnp.promote_types(a, b))


def _check_promoted(a: np.dtype, b: np.dtype) -> None:
    kinds = category(a), category(b)
    what = None
    if any(kind == _FLOAT and x.itemsize == 1 for x, kind in ((a, kinds[0]), (b, kinds[1]))):
        what = "Float8 Types"
    elif not _WIDE_UNSIGNED.isdisjoint((a, b)) and _FLOAT not in kinds:
        what = "uint16, uint32, uint64 types"
    if what is not None:
        raise RuntimeError(
            f"Promotion for {what} is not supported, attempted to promote {type_name(a)} and "
            f"{type_name(b)}"
        )


def result_type(*operands: Any) -> np.dtype:
    """Like `torch.result_type`, for arrays and Python numbers; ignores operands that are None."""
    ranks: list[np.dtype | None] = [None, None, None]
    for operand in operands:
        if operand is None:
            continue
        rank, dtype = _rank_and_dtype(operand)
        known = ranks[rank]
        ranks[rank] = dtype if known is None else promote_types(known, dtype)
    result: np.dtype | None = None
    for dtype in ranks:
        if dtype is None:
            continue
        if result is None:
            result = dtype
        elif category(dtype) > category(result):
            if category(dtype) == _COMPLEX and category(result) == _FLOAT:
                result = complex_dtype(result)
            else:
                if result == np.bool_ or category(dtype) == _FLOAT:
                    _check_promoted(result, dtype)
                result = dtype
    if result is None:
        raise TypeError("result_type needs at least one operand")
    return result


def to_float(dtype: Any) -> np.dtype:
    """Returns the dtype of a float-valued function (sin, div, mean), which for integers and bool is
    the default.
    """
    return default_float() if is_integral(dtype) else np.dtype(dtype)


def as_dtype(value: Any, dtype: Any) -> Array:
    """Returns an array in a different dtype.

    Booleans are converted to floating point through integers: XLA turns a product with a converted
    boolean into a choice between the other factor and 0, but `False * nan` is NaN.
    """
    array = jnp.asarray(value)
    if array.dtype == jnp.bool_ and not is_integral(dtype):
        array = array.astype(jnp.uint8)
    return array.astype(dtype)


def promote(*operands: Any, floating: bool = False) -> tuple[Array, ...]:
    """Returns the operands as arrays of their common dtype (made floating-point if `floating`)."""
    dtype = result_type(*operands)
    if floating:
        dtype = to_float(dtype)
    return tuple(as_dtype(x, dtype) for x in operands)


_SCALAR_TYPE_NAMES = {
    "bool": "Bool",
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float32": "Float",
    "float64": "Double",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e4m3fnuz": "Float8_e4m3fnuz",
    "float8_e5m2": "Float8_e5m2",
    "float8_e5m2fnuz": "Float8_e5m2fnuz",
    "float8_e8m0fnu": "Float8_e8m0fnu",
}


def type_name(dtype: Any) -> str:
    """Returns the name of a dtype in PyTorch's errors: float32 is "Float"."""
    name = jnp.dtype(dtype).name
    return _SCALAR_TYPE_NAMES.get(name, name)


class RefusedDtype(NotImplementedError):
    """Raised for a dtype that PyTorch refuses on the CPU although JAX would take it.

    The class and message of the error differ between PyTorch's releases. The device gets the error
    from the installed release (`calque.device.kernels.meta_check`), so callers do not see this one.
    """


class MissingDtype(TypeError):
    """Raised for a result with a dtype that JAX does not have."""

    def __init__(self, dtype: str) -> None:
        super().__init__(f"the jax device does not support dtype torch.{dtype}")


def refuse(name: str, dtype: Any, *categories: int) -> None:
    """Raise `RefusedDtype`, in PyTorch's words, for a dtype of one of the categories."""
    if category(dtype) in categories:
        raise RefusedDtype(f"\"{name}\" not implemented for '{type_name(dtype)}'")


def check_factor(name: str, factor: Any, dtype: Any) -> None:
    """Raise RuntimeError for a factor of a higher kind than the result, or a boolean of another.

    Args:
        name: of the factor's parameter.
        factor: a number, a traced one too.
        dtype: of the result.
    """
    kind = category(jnp.asarray(factor).dtype)
    if kind == BOOL and dtype != jnp.bool_:
        raise RuntimeError(f"Boolean {name} only supported for Boolean results.")
    if kind > INT and is_integral(dtype):
        raise RuntimeError(
            f"For integral input tensors, argument {name} must not be a floating point number."
        )
    if kind == COMPLEX and not is_complex(dtype):
        raise RuntimeError(
            f"For non-complex input tensors, argument {name} must not be a complex number."
        )


def opmath(function: Any) -> Any:
    """Returns a rule that computes in float32 where its operands are float16 or bfloat16.

    PyTorch's kernels round such results once, at the end; a chain of half-precision operations
    would round at every step.
    """

    @functools.wraps(function)
    def rule(*args: Any, **kwargs: Any) -> Any:
        half = None
        for value in (*args, *kwargs.values()):
            if getattr(value, "dtype", None) in _HALF and not isinstance(value, np.dtype):
                half = value.dtype
        if half is None:
            return function(*args, **kwargs)
        result = function(*map(_widen, args), **{n: _widen(v) for n, v in kwargs.items()})
        return jax.tree.map(lambda r: r.astype(half) if r.dtype == jnp.float32 else r, result)

    return rule


def _widen(value: Any) -> Any:
    if isinstance(value, Array) and value.dtype in _HALF:
        return value.astype(jnp.float32)
    return value


def wide_operands(self: Any, other: Any, dtype: Any) -> tuple[Array, Array]:
    """Returns two operands in the dtype in which PyTorch's kernels multiply and divide.

    For half precision it is float32. What has another dtype than the result is rounded to that
    first, as the CPU does, but for a second operand of one element: `x * 0.999` does not multiply
    by 1.
    """
    if dtype not in _HALF:
        return as_dtype(self, dtype), as_dtype(other, dtype)
    single = not isinstance(other, Array) or other.size == 1
    return _rounded(self, dtype), (
        as_dtype(other, jnp.float32) if single else _rounded(other, dtype)
    )


def _rounded(value: Any, half: Any) -> Array:
    wide = as_dtype(value, jnp.float32)
    if isinstance(value, Array) and value.dtype == half:
        return wide
    info = jnp.finfo(half)  # XLA may remove a conversion to half precision and back
    return lax.reduce_precision(wide, info.nexp, info.nmant)
