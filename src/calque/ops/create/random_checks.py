"""Checks of the parameters of random operators, which raise PyTorch's errors."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from calque.ops.table.promotion import (
    RefusedDtype,
    is_complex,
    is_float,
)
from calque.ops.table.tensor_argument import TensorArgument

INT64 = np.dtype("int64")

Arguments = dict[str, Any]


def in_order(name: str) -> Any:
    def check(arguments: Arguments) -> None:
        low, high = arguments.get("from", 0.0), arguments.get("to", 1.0)
        if not low <= high:  # also for NaN
            raise RuntimeError(
                f"{name} expects to return a [from, to) range, but found from={low:g} > to={high:g}"
            )

    return check


def integers_in_order(arguments: Arguments) -> None:
    low = arguments.get("low", arguments.get("from", 0))
    high = arguments.get("high", arguments.get("to"))
    if high is not None and not hasattr(high, "shape") and low >= high:
        raise RuntimeError(
            f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        )


def probability(arguments: Arguments) -> None:
    p = arguments.get("p", 0.5)
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p:g}")


def success(arguments: Arguments) -> None:
    if not 0 < arguments["p"] < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={arguments['p']:g}")


def positive(name: str, parameter: str, least: float = 0.0, strict: bool = True) -> Any:
    def check(arguments: Arguments) -> None:
        value = arguments.get(parameter, 1.0)
        if hasattr(value, "shape"):
            return
        if not value >= least or (strict and value == least):  # also for NaN
            sign = ">" if strict else ">="
            raise RuntimeError(
                f"{name} expects {parameter} {sign} {least}, but found {parameter}={value:g}"
            )

    return check


spread: Callable[..., Any] = positive("normal", "std", strict=False)


def known_size(size: Any, *_: Any, **__: Any) -> None:
    if any(n < 0 for n in size):
        raise RuntimeError(f"Trying to create tensor with negative dimension: {list(size)}")


def finite_range(self: TensorArgument, **bounds: Any) -> None:
    low, high = bounds.get("from", 0.0), bounds.get("to", 1.0)
    if is_float(self.dtype) and high - low > float(jnp.finfo(self.dtype).max):
        raise RuntimeError(
            "uniform_ expects to-from to be no more than the largest number of the dtype, but "
            f"found to={high} and from={low}"
        )


def is_probability(p: Any) -> Any:
    return (p >= 0) & (p <= 1)


NO_PROBABILITY = "Expected p_in >= 0 && p_in <= 1 to be true, but got false."


def dropout_probability(arguments: Arguments) -> None:
    if not 0 <= arguments["p"] <= 1:
        raise RuntimeError(
            f"dropout probability has to be between 0 and 1, but got {arguments['p']:g}"
        )


NO_BOUNDS = "check_random_bounds handles only integral, floating-point and boolean types"


def representable(self: TensorArgument, **bounds: Any) -> None:
    _check_bounds(self.dtype, bounds.get("from", 0), bounds.get("to"))


def representable_sized(
    high: Any,
    low: Any = 0,
    dtype: Any = None,
    out: TensorArgument | None = None,
    **_: Any,
) -> None:
    _check_bounds((dtype or INT64) if out is None else out.dtype, low, high)


def _check_bounds(dtype: Any, low: Any, high: Any) -> None:
    """Raise if not all integers from `low` to `high - 1` are numbers of a dtype."""
    if is_complex(dtype):
        raise RefusedDtype(NO_BOUNDS)
    if dtype == np.bool_:
        least, most = 0, 1
    else:
        number, limit = (float, jnp.finfo(dtype)) if is_float(dtype) else (int, jnp.iinfo(dtype))
        least, most = number(limit.min), number(limit.max)  # NumPy rounds what it compares with
    if not least <= low <= most or (high is not None and high - 1 > most):
        raise RuntimeError(f"from or to - 1 is out of bounds for torch.{dtype}")


def distribution(self: TensorArgument, **_: Any) -> None:
    if self.ndim and self.shape[-1] > 2**24:
        raise RuntimeError("number of categories cannot exceed 2^24")
    text = "probability tensor contains either `inf`, `nan` or element < 0"
    self.require(lambda p: (p >= 0) & (p < np.inf), lambda _: RuntimeError(text))
    values = self.values() if self.ndim in (1, 2) else None
    if values is not None and not (values.sum(-1) > 0).all():
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")


def none_below(x: Any) -> Any:
    return ~(x < 0)


NO_RATE = "invalid Poisson rate, expected rate to be non-negative"
