"""Reads of tensors' values into Python: numbers, truth values, lists, numpy arrays.

A replay cannot take a different branch than the run did. So a value that was read is a guard: the
graph reads it again, and raises an error if it differs (`calque.tracing.graph.value_guards`).
"""

import signal
from types import FrameType
from typing import Any, NamedTuple

from calque.errors.frames import is_library
from calque.tracing.core.origins import NodeOrigin
from calque.tracing.graph.value_guards import described

SHARING = frozenset(("numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage"))
"""Reads whose result shares memory with the tensor, so that Python may write to it."""

ADDRESSES = frozenset(("data_ptr", "untyped_storage", "storage", "_typed_storage"))
"""Reads whose result differs in each run."""

FREE = frozenset(
    (
        *("__hash__", "__dir__", "is_tensor", "typename", "has_torch_function"),
        *("promote_types", "can_cast", "broadcast_shapes", "get_default_device", "is_storage"),
        *("names", "name", "has_names"),
    )
)
"""Reads whose result neither depends on values nor affects what is computed."""


def is_lost(question: str, frame: FrameType | None) -> bool:
    """Returns True if the result is discarded: `asyncio.run` formats values for a message.

    `signal.signal`, which it calls, converts a handler to an enum and catches the error.
    """
    if question != "__repr__":
        return False
    while frame is not None and is_library(frame.f_code.co_filename):
        if frame.f_code.co_filename == signal.__file__:
            return True
        frame = frame.f_back
    return False


class Escape(NamedTuple):
    """A value that the program read into Python.

    Attributes:
        what: the method or function, such as `item`.
        value: the value that it returned.
        origin: the line of the program.
        is_followed: whether a graph of functions reads it again and computes with the new value;
            otherwise it is a guard.
    """

    what: str
    value: Any
    origin: NodeOrigin | None
    is_followed: bool = False

    def __str__(self) -> str:
        return f"{self.origin}: {self.what} gave {described(self.value)}"
