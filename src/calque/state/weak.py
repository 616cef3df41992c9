"""Rows of weakly referenced state, which a guard does not keep alive.

Weak references show the end of an object, which is a change of state.
"""

import copy
import weakref
from collections.abc import Collection, Container, Iterable, Mapping
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

    def referred(self, value: Any) -> Any:
        """Returns the object that stands behind one of its values; None if that is dead."""
        return value() if type(value) is weakref.ref else value

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


class Referred:
    """The places of objects to which weak references in the program's state refer, and which each
    call may replace.

    A program takes what is in such a place for the target, so it must be. A new reference to what
    is there serves as the earlier one did.

    Args:
        rows: the rows that are compared.
        free: the keys of rows that may hold anything.
        kept: the ids of objects that calls return or store, so that no others may replace them.
    """

    def __init__(
        self, rows: Iterable[Row], free: Mapping[Row, Collection[Any]], kept: Container[int]
    ) -> None:
        held = [(row, key, row.before.get(key)) for row, keys in free.items() for key in keys]
        found = {(row, key): one for row, key, one in held if type(one) is weakref.ref}
        self._references: dict[tuple[Row, Any], weakref.ref[Any]] = {}
        self._fixed: set[tuple[Row, Any]] = set()
        if not found:
            return
        compared = {
            id(value)
            for row in rows
            for key, value in row.before.items()
            if key not in row.ignored and key not in free.get(row, ())
        }
        for place, one in found.items():
            if id(one) in compared:
                self._references[place] = one
                if id(one) in kept or id(one()) in kept:
                    self._fixed.add(place)

    def first_difference(self) -> tuple[Row, Any] | None:
        """Returns the first place without the target of its reference; None if there is none."""
        for place, one in self._references.items():
            if not _is_in(place, one):
                return place
        return None

    def exchange(self, old: object, new: object) -> bool:
        """Returns True if one reference serves as another did, which it then replaces."""
        if type(old) is not weakref.ref or type(new) is not weakref.ref:
            return False
        places = [place for place, one in self._references.items() if one is old]
        if not self._fixed.isdisjoint(places) or not any(_is_in(one, new) for one in places):
            return False
        self._references.update(dict.fromkeys(places, new))
        return True


def _is_in(place: tuple[Row, Any], reference: weakref.ref[Any]) -> bool:
    row, key = place
    target, now = reference(), row.get(key)
    return target is not None and (now is target or now is reference)


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
