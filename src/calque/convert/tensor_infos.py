"""The tensors and weights in records of calls."""

from typing import NamedTuple


class TensorInfo(NamedTuple):
    """A tensor that a call takes or returns.

    Attributes:
        name: its name; `"split.1"` is the second result of the call `split`.
        shape, dtype: for example `(2, 3)` and `"float32"`; None if unknown.
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str | None


class WeightInfo(NamedTuple):
    """A parameter, a buffer or a constant, as an argument; its array is in `Call.weights`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
