"""Records and undoes changes that remain after a run of the program."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from calque.state import MISSING
from calque.state.rows import DictRow, NamedRow
from calque.tracing.proxies.proxy import has_proxy

NUMBERS = (int, float, complex)
SCALARS = (*NUMBERS, str, bool)


class Change(NamedTuple):
    """A name that has a different value after the run.

    Attributes:
        key: identifies the name.
        name: the name as the program writes it.
        what: a description of the change.
        place: the line, as the beginning of a message; "" if it is not known.
        before: the value before the run.
        after: the value after the run.
        write: sets the name to a value, or deletes it if the value is MISSING.
    """

    key: Any
    name: str
    what: str
    place: str
    before: Any
    after: Any
    write: Callable[[Any], None]

    @property
    def is_constant(self) -> bool:
        """Returns True if the value after the run is not part of the trace."""
        return not has_proxy((self.after,))


def held_in(change: Change) -> dict[Any, Any] | None:
    """Returns the dictionary that contains a name, such as an object's `__dict__`;
    None if there is none.
    """
    row: Any = getattr(getattr(change.write, "func", None), "__self__", None)
    of_object = isinstance(row, NamedRow) and row.attribute and "__builtins__" not in row.owner
    return row.owner if of_object or isinstance(row, DictRow) else None


def install(changes: Iterable[Change]) -> None:
    """Reapply the changes of a run."""
    for change in changes:
        change.write(change.after)


def first_difference(a: Sequence[Change], b: Sequence[Change]) -> Change | None:
    """Returns a change that only one of two runs made; None if they made the same changes."""
    for ours, theirs in ((a, b), (b, a)):
        known = {change.key: change for change in theirs}
        for change in ours:
            twin = known.get(change.key)
            if twin is None or twin.is_constant != change.is_constant:
                return change
            if change.is_constant and not is_same(change.after, twin.after):
                return change
    return None


def is_same(a: Any, b: Any) -> bool:
    """Returns True if two values are equal and of the same type, or are the same object.

    >>> is_same([1, (2, "x")], [1, (2, "x")]), is_same([1], [1.0]), is_same([object()], [object()])
    (True, False, False)
    """
    if a is b or type(a) is not type(b):
        return a is b
    if type(a) is dict:
        return [*a] == [*b] and all(map(is_same, a.values(), b.values()))
    if type(a) in (list, tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    return isinstance(a, SCALARS) and a == b


def described(value: object) -> str:
    """Returns the text of a value for errors, in one line.

    >>> described(torch.ones(2)), described(torch.ones(64, 64)), len(described([0] * 100))
    ('tensor([1., 1.])', 'a tensor of float32[64, 64]', 201)
    """
    if value is MISSING:
        return "nothing"
    if has_proxy((value,)):
        return "a value of the traced program"
    if isinstance(value, torch.Tensor) and value.numel() > _PRINTED:
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def change_of(before: object, after: object) -> str:
    """Returns a description of a change of value."""
    old, new = described(before), described(after)
    return f"changes from {old} to {new if new != old else 'another one'}"


_PRINTED, _LONGEST = 8, 198
"""The maximum number of printed elements of a tensor, and of characters of a text."""
