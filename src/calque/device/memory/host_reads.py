"""Values that the host reads, and the lines that read them.

In eager calls, the host gets the value. A trace has no values: it either assumes the value of an
earlier call (`calque.jitting.assumed_values`), which its program then checks, or raises.
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
from calque.errors import TraceError, note_use_elsewhere, unrepeatable
from calque.errors.frames import caller_frame


class HostRead(NamedTuple):
    """A read of a value by the host.

    Attributes:
        file, line, function: the code that reads, which is neither calque's nor PyTorch's
            dispatcher.
        columns: the position in the line.
        use: the use of the value.
        shape, dtype: those of the array.
    """

    file: str
    line: int
    function: str
    columns: tuple[int | None, int | None]
    use: str
    shape: tuple[int, ...]
    dtype: Any

    @classmethod
    def of(cls, array: Array, use: str) -> "HostRead":
        """Returns a read of an array that is happening now."""
        frame = caller_frame()
        code = frame.f_code
        # The columns identify the call; the offset of the instruction changes as the interpreter
        # specializes.
        _, _, *columns = _positions(code)[frame.f_lasti // 2]
        place = code.co_filename, frame.f_lineno, code.co_qualname
        return cls(*place, tuple(columns), use, tuple(array.shape), np.dtype(array.dtype))

    def __str__(self) -> str:
        what = f"{self.dtype}{list(self.shape)}"
        return f"{what} {self.use} at {self.file}:{self.line} in {self.function}"


class UnservableCall(BaseException):
    """Signals that a program cannot serve a call, because values are not known or differ from those
    assumed.

    Not an `Exception`, because code between the read of a value and `calque.jit` must not catch it.
    """


class AssumesValues(Protocol):
    """Supplies values that a trace does not know (see `calque.jitting.assumed_values`)."""

    def value(
        self, array: Array, use: str, error: Callable[[], Exception]
    ) -> np.ndarray | None: ...

    def shown(self, file: str) -> bool: ...

    def refused(self, error: Exception) -> BaseException: ...


class NeedsValue(UnservableCall):
    """Signals that a trace needs a value that it has to observe first.

    Attributes:
        error: the error to raise if the value cannot be observed.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class NeverServed(UnservableCall):
    """Signals that an installed package's code did something that no program can repeat."""


@lru_cache(maxsize=256)
def _positions(code: CodeType) -> list[Any]:
    return list(code.co_positions())


def without_value(shape: tuple[int, ...]) -> TraceError:
    """Returns the error for a traced array of this shape that code outside the trace uses."""
    error = unrepeatable(
        f"a tensor of shape {shape} that a jitted function has created has no value here:",
        "the function raised an error that holds it, or is still traced while other code (a signal "
        "handler, another thread) uses it",
        "Use what the function returns: return the tensor instead of raising it, or wait until the "
        "function has returned.",
    )
    note_use_elsewhere(error)
    return error


def known(array: Array, use: str, error: Callable[[], Exception]) -> Array | np.ndarray:
    """Returns the value of an array that the host reads.

    Args:
        array: the array; traced in a trace.
        use: the use of the value, as the end of the sentence "a tensor is".
        error: returns the error for a trace that may not assume the value.

    Raises:
        ElsewhereError: other processes hold parts of it.
        TraceError: it belongs to a function being traced, and the caller is outside the trace.
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
