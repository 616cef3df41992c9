"""Places in the state whose tensor is replaced between calls, by code outside the function."""

from collections.abc import Iterator
from typing import Any

from calque.jitting.python_effects import Rebound
from calque.program.trees import is_tensor
from calque.state import Snapshot, StateGuard
from calque.state.rows import DictRow, SetRow
from calque.state.weak import WeakRow

_MOST = 64
Place = tuple[Any, Any]
"""A container, and a key of it."""


class Exchanged:
    """The places that a jitted function has found replaced: `self.hidden = hidden.detach()`.

    A program compares which tensor a place holds. Where another one has come, the next program
    takes what it finds there, as an input.

    Attributes:
        places: the places.
    """

    def __init__(self) -> None:
        self.places: tuple[Place, ...] = ()

    def learn(self, guard: Any) -> None:
        """Record the place where a guard has failed."""
        found = guard.first_difference() if isinstance(guard, StateGuard) else None
        if found is None or isinstance(found[0], WeakRow) or len(self.places) == _MOST:
            return
        row, key = found
        before: Any = row.before.get(key)
        now: Any = row.get(key)
        known = any(owner is row.owner and key == other for owner, other in self.places)
        if known or not (_is_plain(before) and _is_plain(now)):
            return
        if (before.shape, before.dtype) == (now.shape, now.dtype):
            self.places += ((row.owner, key),)


def _is_plain(value: Any) -> bool:
    return is_tensor(value) and not value.requires_grad


def exchanged(
    places: tuple[Place, ...], snapshot: Snapshot, changed: set[Place]
) -> Iterator[Rebound]:
    """Yields the places that a trace has met and that are not in `changed` (the row's id, and a
    key).

    It yields none if the program may ask which tensor a place holds.
    """
    if not places or snapshot.compares_objects or snapshot.asks_identity or _has_keys(snapshot):
        return
    owners = {id(owner) for owner, _ in places}
    for row in [row for row in snapshot.rows.values() if id(row.owner) in owners]:
        for owner, key in places:
            value = row.before.get(key) if row.owner is owner else None
            if _is_plain(value) and not changed & {(id(row), key), (id(row), None)}:
                yield Rebound(row, key, [value], None, [], None)


def _has_keys(snapshot: Snapshot) -> bool:
    """Returns True if tensors are keys of a dict or elements of a set: they are found by identity.

    An optimizer has such a dict, but of parameters.
    """
    return any(
        any(map(_is_plain, row.before if isinstance(row, DictRow) else row.before.values()))
        for row in snapshot.rows.values()
        if isinstance(row, DictRow | SetRow)
    )
