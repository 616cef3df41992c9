"""The interface of tensors for checks of values, and checks that several operators share.

A check is called with the arguments of a call, in which tensors are replaced by `TensorArgument`.
The device implements it: in eager calls, values are checked if the host can read them without a
copy; in a trace, a requirement becomes a check in the program if requested.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np


class TensorArgument(Protocol):
    """A tensor among the arguments of a call."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        ...

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        ...

    @property
    def size(self) -> int:
        """The number of elements."""
        ...

    @property
    def is_float(self) -> bool:
        """Returns True if the dtype is a real floating-point type."""
        ...

    @property
    def dtype(self) -> np.dtype:
        """The numpy dtype."""
        ...

    @property
    def number(self) -> int | float | complex | None:
        """The value of a number that PyTorch passes as a tensor, or of a tensor without dimensions
        on the host; None for other tensors, and for those whose values a trace does not know.
        """
        ...

    def values(self) -> np.ndarray | None:
        """Returns the values; None in a trace, or if reading would need a copy."""
        ...

    def require(
        self, good: Callable[[Any], Any], error: Callable[[Any], Exception], wait: bool = False
    ) -> None:
        """Raise an error unless every value is valid.

        Args:
            good: a function from an array to a mask of its valid elements.
            error: the error for an invalid value.
            wait: whether to wait for values that are not ready.
        """
        ...

    def require_within(self, least: int, limit: int, error: Callable[[int], Exception]) -> None:
        """Raise an error unless `least` <= integer < `limit`."""
        ...


def each(
    parameter: str, good: Callable[[Any], Any], kind: type[Exception], text: str
) -> Callable[..., None]:
    """Returns a check that every value of a parameter is valid."""

    def check(**given: Any) -> None:
        given[parameter].require(good, lambda _: kind(text))

    return check


def within_dim(kind: type[Exception], text: str, negative: bool = False) -> Callable[..., None]:
    """Returns a check that an index is within a dimension.

    Args:
        kind, text: the class and message of the error; the message may contain `{bad}`, `{dim}` and
            `{size}`.
        negative: whether negative indices count from the end.
    """

    def check(self: TensorArgument, dim: int, index: TensorArgument, **_: Any) -> None:
        if not -max(self.ndim, 1) <= dim < max(self.ndim, 1) or index.is_float:
            return
        size = self.shape[dim] if self.ndim else 1
        least = -size if negative else 0
        index.require_within(
            least, size, lambda bad: kind(text.format(bad=bad, dim=dim, size=size))
        )

    return check


def within_all(self: TensorArgument, index: TensorArgument, **_: Any) -> None:
    """Check that an index is within the number of elements."""
    if index.is_float:
        return
    index.require_within(
        -self.size,
        self.size,
        lambda bad: IndexError(
            f"out of range: tried to access index {bad} on a tensor of {self.size} elements."
        ),
    )


IN_SELF = "index out of range in self"
INDEX = "index {bad} is out of bounds for dimension {dim} with size {size}"
