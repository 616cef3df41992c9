"""Changes of a run of the program that outlast it: noted, and undone."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from calque.state import MISSING
from calque.state.rows import DictRow, NamedRow
from calque.tracing.proxies.proxy import has_proxy

NUMBERS = (int, float, complex)
SCALARS = (*NUMBERS, str, bool)


class Change(NamedTuple):
    """One name that means something else after the run.

    Attributes:
        key: tells it from other names.
        name: as the program spells it.
        what: what happened to it, in words.
        place: the line, as the beginning of a message; "" where it is not known.
        before: what it meant before.
        after: what it means after the run.
        write: gives the name a value, or takes it away if that is MISSING.
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
        """Returns True if what the name means after the run is no part of the trace."""
        return not has_proxy((self.after,))


def held_in(change: Change) -> dict[Any, Any] | None:
    """The dictionary that has a name, one of an object's attributes too; None where none has."""
    row: Any = getattr(getattr(change.write, "func", None), "__self__", None)
    of_object = isinstance(row, NamedRow) and row.attribute and "__builtins__" not in row.owner
    return row.owner if of_object or isinstance(row, DictRow) else None


def install(changes: Iterable[Change]) -> None:
    """Leave things as the run has left them."""
    for change in changes:
        change.write(change.after)


def first_difference(a: Sequence[Change], b: Sequence[Change]) -> Change | None:
    """A change that one run makes and the other does not; None where they make the same ones."""
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
    """Returns True if a name that meant the one still means the same.

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


def spoken(value: Any) -> str:
    """A value as an error shows it."""
    if value is MISSING:
        return "nothing"
    return "a value of the traced program" if has_proxy((value,)) else repr(value)
