"""What leaves the tensors of a run for Python: numbers, truth values, lists, numpy arrays.

A replay cannot go another way than the run went. So what was read is a guard: the graph reads it
again, and refuses to go on where it differs (`calque.tracing.graph.answers`).
"""

from typing import Any, NamedTuple

from calque.tracing.core.origins import NodeOrigin
from calque.tracing.graph.answers import spoken

SHARING = frozenset(("numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage"))
"""Those whose result shares memory with the tensor, so that Python may write to it."""

ADDRESSES = frozenset(("data_ptr", "untyped_storage", "storage", "_typed_storage"))
"""What is another one in each run."""

FREE = frozenset(
    (
        *("__hash__", "__dir__", "is_tensor", "typename", "has_torch_function"),
        *("promote_types", "can_cast", "broadcast_shapes", "get_default_device", "is_storage"),
        *("names", "name", "has_names", "_version", "is_shared", "is_inference", "output_nr"),
    )
)
"""Questions whose answer neither depends on values nor decides what is computed with them."""


class Escape(NamedTuple):
    """A value that the program read into Python.

    Attributes:
        what: the method or function, such as `item`.
        value: what it gave.
        origin: the line.
    """

    what: str
    value: Any
    origin: NodeOrigin | None

    def __str__(self) -> str:
        return f"{self.origin}: {self.what} gave {spoken(self.value)}"
