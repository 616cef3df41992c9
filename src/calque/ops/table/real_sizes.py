"""Symbolic dimensions times numbers, as in `int(height * 0.5)`.

JAX's dimensions are polynomials with integer coefficients. PyTorch's `trunc(float(height) *
factor)` is one of them, `height * p // q`, if the factor is a fraction that floats represent
exactly. Other operations on such a number use arrays.
"""

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.upstream.jax_internals import convert_element_type

_LIMIT = 2**16  # for numerators and denominators, so that products with dimensions are exact


class RealSize:
    """A dimension times a fraction.

    Args:
        dim: a symbolic dimension.
        factor: the fraction.
    """

    def __init__(self, dim: Any, factor: Fraction = Fraction(1)) -> None:
        self._dim = dim
        self._factor = factor

    def array(self) -> Array:
        """Returns the number as an array, weakly typed like a Python number."""
        whole: Any = convert_element_type(
            jnp.asarray(self._dim), np.dtype(np.float64), weak_type=True
        )
        return jnp.multiply(whole, float(self._factor))

    def __mul__(self, other: Any) -> Any:
        return self._scaled(other, operator.mul)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self._scaled(other, operator.truediv)

    def __floor__(self) -> Any:
        return self._dim * self._factor.numerator // self._factor.denominator

    __trunc__ = __floor__  # sizes are not negative

    def __ceil__(self) -> Any:
        return -(-self._dim * self._factor.numerator // self._factor.denominator)

    def _scaled(self, other: Any, function: Callable[[Any, Any], Any]) -> Any:
        factor = self._factor
        # Only scaling by powers of two is exact; otherwise a second rounding could be visible.
        if isinstance(other, int | float) and 0 < other < _LIMIT and _is_dyadic(factor):
            scaled = function(factor, Fraction(other))
            if max(scaled.numerator, scaled.denominator) < _LIMIT:
                return RealSize(self._dim, scaled)
        return function(self.array(), as_array(other))


def _is_dyadic(factor: Fraction) -> bool:
    return factor.denominator & (factor.denominator - 1) == 0


def as_array(value: Any) -> Any:
    """Returns the array of a `RealSize`; any other value unchanged."""
    return value.array() if isinstance(value, RealSize) else value


def truncated(value: Any) -> Any:
    """Returns a number truncated to a size.

    Raises:
        TypeError: the number is not a simple fraction of a dimension.
    """
    if isinstance(value, Array):
        raise TypeError(
            "a size is computed from it with a factor that is not a simple fraction such as 1.5 "
            "or 0.25"
        )
    return math.trunc(value)


def _by_arrays(name: str) -> Callable[[RealSize, Any], Any]:
    function = getattr(operator, name)

    def compute(self: RealSize, other: Any) -> Any:
        return function(self.array(), as_array(other))

    return compute


for _name in ("add", "sub", "floordiv", "mod", "pow", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(RealSize, f"__{_name}__", _by_arrays(_name))


def _reflected(name: str) -> Callable[[RealSize, Any], Any]:
    function = getattr(operator, name)
    return lambda self, other: function(other, self.array())


for _name in ("add", "sub", "truediv", "floordiv", "mod", "pow"):
    setattr(RealSize, f"__r{_name}__", _reflected(_name))
