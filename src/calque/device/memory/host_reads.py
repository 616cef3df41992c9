"""Values that the host reads, and the line that reads them.

In eager calls the host gets them. A trace has no values: it may assume one from an earlier call
(`calque.jitting.assumed_values`), which its program then checks, or it raises.
"""

from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple, Protocol

import numpy as np
from jax import Array
from jax.core import Tracer

from calque.device.memory.cell import active
from calque.device.runtime.addressable import check_here
from calque.device.runtime.placement import spread
from calque.errors import TraceError, unrepeatable
from calque.errors.frames import asking_frame


class Asked(NamedTuple):
    """A read of a value by the host.

    Attributes:
        file, line, function: the code that looks, which is neither ours nor PyTorch's dispatcher.
        columns: where in the line.
        use: what it wants of the value.
        shape, dtype: of the array.
    """

    file: str
    line: int
    function: str
    columns: tuple[int | None, int | None]
    use: str
    shape: tuple[int, ...]
    dtype: Any

    @classmethod
    def of(cls, array: Array, use: str) -> "Asked":
        """Returns a read of an array that is happening now."""
        frame = asking_frame()
        code = frame.f_code
        # Not the instruction itself: which one makes a call changes as the interpreter adapts.
        _, _, *columns = _positions(code)[frame.f_lasti // 2]
        place = code.co_filename, frame.f_lineno, code.co_qualname
        return cls(*place, tuple(columns), use, tuple(array.shape), np.dtype(array.dtype))

    def __str__(self) -> str:
        what = f"{self.dtype}{list(self.shape)}"
        return f"{what} {self.use} at {self.file}:{self.line} in {self.function}"


class Unforeseen(BaseException):
    """Signals that a program cannot serve a call: its values are not known, or not those assumed.

    Not an `Exception`, because code between the read of a value and `calque.jit` must not catch it.
    """


class AssumesValues(Protocol):
    """Supplies values that a trace does not know (see `calque.jitting.assumed_values`)."""

    def value(
        self, array: Array, use: str, error: Callable[[], Exception]
    ) -> np.ndarray | None: ...

    def shown(self, file: str) -> bool: ...

    def refused(self, error: Exception) -> BaseException: ...


class NeedsValue(Unforeseen):
    """Signals that a trace needs a value that it has to observe first.

    Attributes:
        error: what is raised where nobody shows it.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class NeverServed(Unforeseen):
    """Signals that code of an installed package did something that no program can repeat."""


@lru_cache(maxsize=256)
def _positions(code: CodeType) -> list[Any]:
    return list(code.co_positions())


def without_value(shape: tuple[int, ...]) -> TraceError:
    """The error for an array of a trace, of that shape, that code outside of it uses."""
    return unrepeatable(
        f"a tensor of shape {shape} that a jitted function creates is used",
        "by code that does not belong to it (a signal handler, another thread) while it is traced, "
        "when it has no value yet",
        "Use what the function returns, or wait until it has returned.",
    )


def known(array: Array, use: str, error: Callable[[], Exception]) -> Array | np.ndarray:
    """Returns the value of an array that the host reads.

    Args:
        array: the array; traced in a trace.
        use: what the host wants of it, as the end of "a tensor is".
        error: gives what is raised in a trace that may not assume the value.

    Raises:
        ElsewhereError: another process holds a part of it.
        TraceError: it is made by a function that is being traced, of which the caller is no part.
    """
    trace = active.trace
    if trace is not None:
        value = trace.value(array, use, error)
        if value is None:
            raise error()
        return value
    if isinstance(array, Tracer):
        raise without_value(array.shape)
    if spread.exists:
        check_here(array, use)
    if active.observer is not None:
        active.observer.see(array, use)
    return array
