"""Rows of weakly referenced state, which a guard does not keep alive.

Weak references show the end of an object, which is a change of state.
"""

import copy
import weakref
from collections.abc import Collection, Mapping
from typing import Any

from calque.errors import unrepeatable
from calque.state.paths import Path
from calque.state.rows import Row
from calque.state.values import MISSING

_GONE = "__gone__"


class WeakRow(Row):
    """A row that refers weakly to some objects.

    Args:
        row: the row.
        targets: the ids of the objects.
        target: the object to which the row belongs, if it is one of them.
        attributes: whether the row's owner is the object's instance dict.
    """

    __slots__ = ("_attributes", "_row", "_target", "_targets")

    def __init__(
        self, row: Row, targets: Collection[int], target: Any = None, attributes: bool = False
    ) -> None:
        self._targets = targets
        before = self._without(row.before)
        # Objects that only it referenced must not be kept alive.
        self._target = None if target is None else weakref.ref(target, lambda _: before.clear())
        self._attributes = attributes
        self._row = copy.copy(row)
        self._row.before = {}
        if target is not None:
            self._row.owner = None
        self.owner: Any = row.owner if self._target is None else self._target
        self.path: Path = row.path
        self.before: dict[Any, Any] = before
        self.guarded: bool = row.guarded
        self.restored: bool = row.restored
        self.ignored: Collection[Any] = row.ignored

    @property
    def ordered(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._row.ordered

    @property
    def settable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        gone = self._target is not None and self._target() is None
        return self._row.settable and not gone

    def _now(self) -> Row | None:
        row = copy.copy(self._row)
        if self._target is None:
            row.owner = self.owner
            return row
        target = self._target()
        if target is None:
            return None
        row.owner = vars(target) if self._attributes else target
        return row

    def _without(self, items: dict[Any, Any]) -> dict[Any, Any]:
        """Returns the items with weak references instead of the objects."""
        return {self._reference(k): self._reference(v) for k, v in items.items()}

    def _reference(self, value: object) -> Any:
        if id(value) in self._targets:
            return weakref.ref(value)  # the same reference object as long as it is referenced
        if type(value) is tuple and len(value) == 2:  # the key of a set's element
            kind, one = value
            return (kind, weakref.ref(one)) if id(one) in self._targets else value
        return value

    def _object(self, value: Any) -> Any:
        if type(value) is tuple and len(value) == 2:
            return (value[0], self._object(value[1]))
        return value() if type(value) is weakref.ref and id(value()) in self._targets else value

    def items(self) -> dict[Any, Any]:
        row = self._now()
        return {_GONE: True} if row is None else self._without(row.items())

    def get(self, key: Any) -> Any:
        row = self._now()
        return MISSING if row is None else self._reference(row.get(self._object(key)))

    def put(self, key: object, value: object) -> None:
        row = self._now()
        if row is not None:
            row.put(self._object(key), self._object(value))

    def assign(self, items: dict[Any, Any]) -> None:
        row = self._now()
        if row is not None:
            row.assign({self._object(k): self._object(v) for k, v in items.items()})

    def name(self, key: Any) -> str:
        return self._row.name(key)


def proxied(value: object) -> Any:
    """Returns the object that a `weakref.proxy` refers to; None if it is dead.

    Also returns None if the object overrides attribute access.
    """
    try:
        return value.__init__.__self__
    except (ReferenceError, AttributeError):
        return None


def refuse_if_waited_for(value: object) -> None:
    """Check that no finalizer waits for the end of a value that each call creates, or detach it.

    Raises:
        TraceError: one does.
    """
    found = (one for one in weakref.getweakrefs(value) if issubclass(type(one), weakref.ref))
    waiting = [end for one in found if type(end := one.__callback__) is weakref.finalize]
    if waiting:
        for end in waiting:
            end.detach()
        raise unrepeatable(
            f"weakref.finalize waits for the end of a {type(value).__name__}",
            "that the jitted function creates, but each call creates another one",
            "Call weakref.finalize with what the function returns.",
        )


def weakened(rows: Mapping[Any, Row], targets: Collection[Any]) -> dict[Any, Row]:
    """Returns the rows, with weak rows for those that hold or belong to some objects."""
    found, ids = dict(rows), frozenset(map(id, targets))
    for target in targets:
        held = getattr(target, "__dict__", None)
        places = [(("d", id(target)), True), (("u", id(target)), True), (id(held), True)]
        places += [((mark, id(target)), False) for mark in ("k", "h", "s", "t", "f", "n", "w")]
        for place, attributes in places:
            row = found.get(place)
            if row is not None:
                found[place] = WeakRow(row, ids, target, attributes)
    for place, row in found.items():
        if type(row) is not WeakRow and any(id(v) in ids for v in row.before.values()):
            found[place] = WeakRow(row, ids)
    return found
