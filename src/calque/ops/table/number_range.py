"""Checks whether a dtype can hold a number, as PyTorch's C++ converts it."""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from calque.ops.table.promotion import (
    default_complex,
    default_float,
    is_complex,
    is_float,
    is_integral,
    result_type,
    type_name,
)
from calque.ops.table.release import RELEASE

_IN_EVERY_DTYPE = range(128)
_IN_C = {
    "uint8": "uint8_t",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int",
    "int64": "int64_t",
    "float16": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "float32": "float",
    "float64": "double",
}
"""The names of dtypes in PyTorch's errors."""


class Holds:
    """Checks that the dtype of an operator's operands can hold some of its number arguments.

    PyTorch's kernels convert such numbers to the dtype in which they compute. Numbers that are
    operands take part in type promotion: the bounds of `clamp` do, the `alpha` of `add` does not.

    Attributes:
        parameters: the numbers' names.
    """

    def __init__(
        self,
        *parameters: str,
        operands: bool = False,
        integers_only: bool = False,
        like: str | None = None,
    ) -> None:
        """Check the numbers of some parameters.

        Args:
            *parameters: their names.
            operands: whether they are operands.
            integers_only: whether to check only integer dtypes.
            like: the tensor whose dtype counts; by default, the common dtype of all operands.
        """
        self.parameters = parameters
        self._operands = operands
        self._integers_only = integers_only
        self._like = like

    def __call__(self, /, **given: Any) -> None:
        """Check the arguments of a call, a `TensorArgument` for each tensor.

        Raises:
            RuntimeError: a number does not fit.
        """
        dtype = given[self._like].dtype if self._like else self._common_dtype(given)
        if self._integers_only and (is_float(dtype) or is_complex(dtype)):
            return
        for name in self.parameters:
            check_holds(given.get(name), dtype)

    def _common_dtype(self, given: dict[str, Any]) -> np.dtype:
        out = {"out"} if self._operands else {"out", *self.parameters}
        return result_type(*(x for n, v in given.items() if n not in out for x in _operands(v)))


class HoldsLimits(Holds):
    """Checks the limits of operators like `clamp`, which are named `min...` and `max...`.

    In releases where limits saturate, a limit that excludes all numbers of an integer dtype is
    refused.
    """

    def __call__(self, /, **given: Any) -> None:
        dtype = self._common_dtype(given)
        if not _saturates(dtype):
            super().__call__(**given)
            return
        bounds = jnp.iinfo(dtype)
        for name in self.parameters:
            value, word = given.get(name), name[:3]
            if isinstance(value, int | float) and (
                value > bounds.max if word == "min" else value < bounds.min
            ):
                raise RuntimeError(
                    f"Clamp {word} value {value:g} is outside the representable range of "
                    f"{type_name(dtype)}"
                )


class HoldsEachLimit(Holds):
    """As `HoldsLimits`, for operators on a list of tensors, with one number or a list of them."""

    def __init__(self, parameter: str, word: str) -> None:
        """Check a parameter.

        Args:
            parameter: its name.
            word: "min" or "max".
        """
        super().__init__(parameter)
        self._word = word
        self._limits = HoldsLimits(word, operands=True)

    def __call__(self, /, **given: Any) -> None:
        tensors, numbers = given["self"], given.get(self.parameters[0])
        if not isinstance(numbers, list):
            numbers = [numbers] * len(tensors)
        for tensor, number in zip(tensors, numbers):  # other lengths are refused by the operator
            self._limits(**{"self": tensor, self._word: number})


def saturated(limit: Any, dtype: Any) -> Any:
    """Returns a limit of `clamp`, clipped to an integer dtype where PyTorch's limits saturate.

    Args:
        limit: a number, which may be traced; tensors are returned unchanged.
        dtype: the dtype of the limit.
    """
    if not _saturates(dtype):
        return limit
    bounds = jnp.iinfo(dtype)
    if isinstance(limit, int | float):
        return min(max(limit, int(bounds.min)), int(bounds.max))
    if getattr(limit, "weak_type", False):
        limit = jnp.maximum(limit, int(bounds.min))
        return limit if dtype == np.uint64 else jnp.minimum(limit, int(bounds.max))
    return limit


def _saturates(dtype: Any) -> bool:
    return RELEASE.limits_saturate and dtype != np.bool_ and is_integral(dtype)


def _operands(value: Any) -> Iterable[Any]:
    for x in value if isinstance(value, list | tuple) else (value,):
        if hasattr(x, "ndim") or (isinstance(x, int | float | complex) and type(x) is not bool):
            yield x


def fits_every_dtype(value: Any) -> bool:
    """Returns True for arguments that need no check against the dtype."""
    kind = type(value)
    if kind is int:
        return value in _IN_EVERY_DTYPE
    return (kind is float and 0.0 <= value <= 127.0) or value is None or kind is bool


def _overflows(value: Any, dtype: Any) -> bool:
    """Returns True if a dtype cannot hold a Python number, as C++ converts it."""
    if isinstance(value, complex):
        return not is_complex(dtype) and dtype != np.bool_ and value.imag != 0
    if dtype == np.bool_ or is_complex(dtype) or not isinstance(value, int | float):
        return False
    if not math.isfinite(value):
        return not is_float(dtype)
    if is_float(dtype):
        return abs(value) > float(jnp.finfo(dtype).max)
    limit = jnp.iinfo(dtype)
    return value > limit.max or value < (limit.min or -limit.max)


class HoldsNew:
    """Checks that the dtype of a new tensor, or of an `out=`, can hold some numbers.

    Attributes:
        parameters: the numbers' names.
        dtype: the numpy dtype if the call gives none; None for that of the number.
        whole: the numpy dtype of a number without a dtype, if it is an integer.
    """

    def __init__(self, *parameters: str, dtype: Any = None, whole: Any = None) -> None:
        self.parameters = parameters
        self.dtype = dtype
        self.whole = whole

    def __call__(self, /, dtype: Any = None, out: Any = None, **given: Any) -> None:
        """Check the arguments of a call, a `TensorArgument` for each tensor.

        Raises:
            RuntimeError: a number does not fit.
        """
        dtype = (dtype or self.dtype) if out is None else out.dtype
        for name in self.parameters:
            value = given.get(name)
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            check_holds(value, self.whole if dtype is None and is_whole else dtype)


def check_holds(value: Any, dtype: Any) -> None:
    """Raise RuntimeError if a dtype cannot hold a number, if the number is known.

    A number that each call of a program computes in Python is guarded.

    Args:
        value: a number, or any other value, which is not checked.
        dtype: a numpy dtype; None for the dtype of a new tensor of the number.
    """
    if isinstance(value, float | complex) and dtype is None:
        dtype = default_float() if isinstance(value, float) else default_complex()
    if isinstance(value, bool | int | float | complex):
        _check_holds(value, dtype)
        return
    node: Any = getattr(value, "node", None)
    if dtype is None or not getattr(node, "in_python", False):
        return
    if node.watch.ask_of(lambda number: _overflows(number, dtype), node):
        node.watch.give_up(node)


@lru_cache(maxsize=4096, typed=True)
def _check_holds(value: Any, dtype: Any) -> None:
    if dtype is not None and _overflows(value, dtype):
        raise RuntimeError(no_room_in(dtype))


def no_room_in(dtype: Any) -> str:
    """Returns PyTorch's message for a number that a dtype cannot hold."""
    name = str(dtype)
    return f"value cannot be converted to type {_IN_C.get(name, name)} without overflow"
