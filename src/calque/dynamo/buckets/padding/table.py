"""The table of rules, and functions that several rules use."""

from collections.abc import Callable, Sequence
from typing import Any

from calque.dynamo.buckets.padding.padded import (
    Padded,
    Sizes,
    Unpaddable,
    layout_of,
    length,
    spread,
)

RULES: dict[str, Callable[..., Any]] = {}
"""The rules by the name of the primitive."""


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the rule of these primitives."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def expected(sizes: Sizes, equation: Any, value: Padded) -> Padded:
    """Returns a value after checking that its length agrees with its layout."""
    for held, axis in zip(value.array.shape, value.layout, strict=True):
        if axis and held != length(sizes, axis):
            raise Unpaddable("its result has a different length for the true size")
    return value


def first_axes(sizes: Sizes, value: Padded, shape: Sequence[Any], axis: int) -> Padded:
    """Returns a value whose first elements along an axis are valid.

    Raises:
        Unpaddable: the axis is padded in several places.
    """
    value = spread(sizes, value, axis, layout_of(shape[axis]))
    if len(value.layout[axis] or ()) > 1:
        raise Unpaddable("it returns indices along an axis that is padded in several places")
    return value
