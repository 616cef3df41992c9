"""Removes traced tensors from errors of the program when its trace has ended."""

from typing import TYPE_CHECKING, Any

from calque.device.memory.cell import cell_of
from calque.errors.placeholder_text import PlaceholderText
from calque.program.trees import is_tensor

if TYPE_CHECKING:
    from calque.jitting.tracing import JitTrace

TRACED = "a traced tensor"
"""The prefix of the text for a tensor of a trace that has ended."""


def without_values(error: BaseException, trace: "JitTrace") -> None:
    """Replace the trace's tensors, which have no values, and their text in an error.

    Code that catches the error may print it, or search its message.
    """
    one: BaseException | None = error
    seen: set[int] = set()
    given = {id(stand_in): i for i, stand_in in enumerate(trace.stand_ins[: len(trace.leaves)])}
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        args = tuple(_outside(value, trace, given) for value in one.args)
        if any(a is not b for a, b in zip(args, one.args)):
            one.args = args
        one = one.__cause__ or one.__context__


def _outside(value: Any, trace: "JitTrace", given: dict[int, int]) -> Any:
    """Returns the replacement for a value when the trace has ended."""
    if isinstance(value, PlaceholderText):
        return "".join([value])
    if not is_tensor(value):
        return value
    if id(value) in given:
        return trace.leaves[given[id(value)]]
    if not trace.lifting.is_fresh(cell_of(value)):
        return value
    return f"{TRACED} of shape {tuple(value.shape)} and dtype {value.dtype}"
