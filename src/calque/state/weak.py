"""Rows of what a program's state refers to weakly: a guard does not keep it alive.

An object that has died is another state than it was, and its weak references say so.
"""

import copy
import weakref
from collections.abc import Collection, Mapping
from typing import Any

from calque.state.paths import Path
from calque.state.rows import Row
from calque.state.values import MISSING

_GONE = "__gone__"


class WeakRow(Row):
    """A row of an object, or of its attributes, that does not hold the object.

    Args:
        row: the row.
        target: the object.
        attributes: whether the row's owner is the object's instance dict.
    """

    __slots__ = ("_attributes", "_row", "_target")

    def __init__(self, row: Row, target: Any, attributes: bool) -> None:
        before = row.before
        # What the object alone held dies with it.
        self._target = weakref.ref(target, lambda _: before.clear())
        self._attributes = attributes
        self._row = copy.copy(row)
        self._row.owner = None
        self.owner: weakref.ref[Any] = self._target
        self.path: Path = row.path
        self.before: dict[Any, Any] = row.before
        self.guarded: bool = row.guarded
        self.restored: bool = row.restored
        self.ignored: Collection[Any] = row.ignored

    @property
    def ordered(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._row.ordered

    @property
    def settable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._row.settable and self._target() is not None

    def _now(self) -> Row | None:
        target = self._target()
        if target is None:
            return None
        row = copy.copy(self._row)
        row.owner = vars(target) if self._attributes else target
        return row

    def items(self) -> dict[Any, Any]:
        row = self._now()
        return {_GONE: True} if row is None else row.items()

    def get(self, key: Any) -> Any:
        row = self._now()
        return MISSING if row is None else row.get(key)

    def put(self, key: Any, value: Any) -> None:
        row = self._now()
        if row is not None:
            row.put(key, value)

    def assign(self, items: dict[Any, Any]) -> None:
        row = self._now()
        if row is not None:
            row.assign(items)

    def name(self, key: Any) -> str:
        return self._row.name(key)


def proxied(value: Any) -> Any:
    """Returns the object that a `weakref.proxy` stands for; None if it has died.

    None as well where the object gives its attributes itself.
    """
    try:
        return value.__init__.__self__
    except (ReferenceError, AttributeError):
        return None


def weakened(rows: Mapping[Any, Row], targets: Collection[Any]) -> dict[Any, Row]:
    """The rows, those of some objects as weak ones."""
    found = dict(rows)
    for target in targets:
        held = getattr(target, "__dict__", None)
        places = [(("d", id(target)), True), (("u", id(target)), True), (id(held), True)]
        places += [((mark, id(target)), False) for mark in ("k", "h", "s", "t", "f", "n", "w")]
        for place, attributes in places:
            row = found.get(place)
            if row is not None:
                found[place] = WeakRow(row, target, attributes)
    return found
