"""Numbers and strings in Python state that no traced code reads."""

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import CodeType
from typing import Any

from torch.nn import Module

from calque.state.copying import Copying
from calque.state.grown import Grown, may_lose_items
from calque.state.library_values import functions_of
from calque.state.named import (
    LISTS,
    WITHOUT_METHODS,
    Holders,
    Named,
    Place,
    holders_of,
    is_plain_dict,
    is_special,
    variable_of,
)
from calque.state.names import names_of
from calque.state.ownership import Owner, owner_of_class
from calque.state.reads import ANY_KEY
from calque.state.rows import CellRow, LibraryClassRow, ListRow, NamedRow, Row, SetRow
from calque.state.values import ATOMIC, MISSING

_TEXT = ("__repr__", "extra_repr")
"""Methods that insert attributes named in a format string."""
_EXACT = (int, str, bytes)
"""Types of values to which only nothing can be added without a change."""
_FILLING = ("__setstate__",)
"""Methods that set an object's attributes and read none."""


class Unread:
    """State that calls need not compare, because no code reads it.

    A training loop may increment a number (`model.global_step += 1`), and so may the traced
    function. If no traced code reads the number, its value does not matter.

    Args:
        named: the knowledge about names.

    Attributes:
        dropped: rows of lists, sets and dicts that nothing reads.
    """

    def __init__(self, named: Named) -> None:
        self._named = named
        self._fresh: list[Row] = []
        self._looked = False
        self.dropped: set[Row] = set()

    def among(self, rows: Mapping[Row, Row]) -> "Unread":
        """Returns the same state, for the rows that replace these."""

        def moved(places: Collection[Place]) -> set[Place]:
            return {(rows.get(row, row), key) for row, key in places}

        old = self._named
        found = [rows.get(row, row) for row in old.rows]
        counted, assigned, copied = moved(old.counted), moved(old.assigned), moved(old.copied)
        new = replace(old, rows=found, counted=counted, assigned=assigned, copied=copied)
        return Unread(new)

    def ignore(self, rows: Collection[Row]) -> bool:
        """Make rows ignore unread state that has changed; returns True if there was any.

        Args:
            rows: all rows of the guard.
        """
        if self._named.rows or self._named.dicts:
            self._named.look()
        changed = [self._ignore(row) for row in (*self._named.rows, *self._dicts(rows))]
        dropped = {*self._lists(rows), *self._grown(rows)} - self.dropped
        self.dropped |= dropped
        return any(changed) or bool(dropped)

    def fresh(self) -> list[Row]:
        """Returns, once, the rows to compare instead of the ignored ones."""
        found, self._fresh = self._fresh, []
        return found

    def _ignore(self, row: Row) -> bool:
        now, before = row.items(), row.before
        if type(row) is ListRow and len(now) != len(before):
            return False
        changed = {key for key in {**before, **now} if self._has_changed(row, key, now)}
        if not changed:
            return False
        row.ignored = changed.union(row.ignored)
        others = {k: v for k, v in before.items() if k in now or k not in row.ignored}
        row.before = {k: others.pop(k, v) for k, v in now.items() if k in others or k in changed}
        row.before.update(others)
        return True

    def _has_changed(self, row: Row, key: object, now: dict[Any, Any]) -> bool:
        before, after = row.before.get(key, MISSING), now.get(key, MISSING)
        appears = before is MISSING or after is MISSING
        name = variable_of(row) if type(row) is CellRow else key
        if (row, key) in self._named.copied:
            return self._is_another_count(row, key, before, after)
        if _has_items(row):
            if name in self._named.keys:
                return False
        elif not isinstance(name, str) or name in self._named.read or is_special(name):
            return False
        if appears and name in self._named.called:  # it now hides a method, or no longer does
            return False
        if (row, key) in self._named.counted:
            return self._is_another_count(row, key, before, after)
        if (row, key) in self._named.assigned or (row, None) in self._named.assigned:
            return False
        if before is not MISSING and self._is_added_to(name, _has_items(row)):
            return self._is_like(row, key, before, after)
        if key in row.ignored:
            return (before is MISSING) is not (after is MISSING)
        return before is not after and type(before) in ATOMIC and type(after) in ATOMIC

    def _is_another_count(self, row: Row, key: object, before: object, after: object) -> bool:
        return type(before) is int and self._is_like(row, key, before, after)

    def _is_added_to(self, name: object, is_item: bool) -> bool:
        """Returns True if code increments what has a name, though it has added nothing that
        changes the value.
        """
        return name in self._named.added or (is_item and ANY_KEY in self._named.added)

    def _is_like(self, row: Row, key: object, before: object, after: object) -> bool:
        """Returns True if adding to a value changes it if and only if it changes another."""
        if key in row.ignored or type(before) is not type(after) or before is after:
            return False
        if type(before) not in _EXACT:
            return False
        self._fresh.append(CountedRow(row, key))
        return True

    def copied(self, rows: Collection[Row]) -> list[Place]:
        """Returns the numbers that have changed, and that code may only copy into what it appends.

        Args:
            rows: all rows of the guard.
        """
        found = [
            (row, key)
            for row in rows
            if not row.path.foreign and row.settable and type(row) is not ListRow
            for key, value in row.before.items()
            if type(value) is int and type(row.get(key)) is int and row.get(key) != value
            if key not in row.ignored
        ]
        copying = self.copying(rows) if found else None
        return [place for place in found if copying is not None and copying.may_be(*place)]

    def copying(self, rows: Collection[Row]) -> Copying:
        """Returns what finds the numbers that code only copies into what it appends."""
        self._named.look()
        holders = holders_of(rows, self._by_name())
        return Copying(self._named, rows, lambda value: self._is_reached(value, holders, set()))

    # Dicts --------------------------------------------------------------------------------------

    def _dicts(self, rows: Collection[Row]) -> Iterator[Row]:
        """Yields the dicts and objects of which code reads only items with constant keys, and the
        lists whose items it only increments.
        """
        if not self._named.dicts:
            return
        found = [(row, row.owner) for row in rows if _has_items(row)]
        found = [pair for pair in (*found, *self._named.objects) if pair[0].is_changed()]
        if found:
            holders = holders_of(rows, self._by_name())
            yield from (row for row, value in found if self._is_reached(value, holders, set()))

    def _is_reached(self, value: object, holders: "Holders", seen: set[int]) -> bool:
        """Returns True if all uses of a dict take single items with constant keys or, for an
        object, single attributes.
        """
        if id(value) in self._named.unnamed or id(value) not in holders:
            return False
        if id(value) in seen:
            return True
        seen.add(id(value))
        closed = self._named.passed if type(value) in WITHOUT_METHODS else self._named.used
        for row, name in holders[id(value)]:
            if name is None or name in closed:
                return False
            if is_plain_dict(row) and not self._is_reached(row.owner, holders, seen):
                return False
        return True

    def _by_name(self) -> set[Row]:
        """Returns the rows that only known code reads, by name."""
        return {*self._named.rows, *(row for row, _ in self._named.objects)}

    # Lists --------------------------------------------------------------------------------------

    def _lists(self, rows: Collection[Row]) -> Iterator[Row]:
        """Yields the lists, sets and dicts that have changed,
        and that no code refers to by name.
        """
        if not self._named.dicts:
            return
        found = [row for row in self._unassigned(rows) if row.is_changed()]
        if found:
            holders = holders_of(rows, self._by_name())
            yield from (row for row in found if self._is_unread(row.owner, holders, set()))

    def _unassigned(self, rows: Collection[Row]) -> list[Row]:
        """Returns the rows of containers that the function does not change."""
        assigned = {id(row) for row, _ in self._named.assigned}
        return [row for row in rows if _is_container(row) and id(row) not in assigned]

    def _grown(self, rows: Collection[Row]) -> Iterator[Row]:
        """Yields, once, the lists to which code only appends."""
        if self._looked:
            return
        self._looked = True
        found = [row for row in self._unassigned(rows) if type(row) is ListRow]
        found = [row for row in found if not (row.grown or may_lose_items(row))]
        for row in Grown(self._named, rows).among(found) if found else ():
            row.leave_out()
            yield row

    def _is_unread(self, value: object, holders: "Holders", seen: set[int]) -> bool:
        """Returns True if a list or dict is held only under names that no code reads, or in state
        that is itself unread.
        """
        if id(value) in self._named.unnamed or id(value) not in holders:
            return False
        if id(value) in seen:
            return True
        seen.add(id(value))
        return all(self._hides(row, name, holders, seen) for row, name in holders[id(value)])

    def _hides(self, row: Row, name: str | None, holders: "Holders", seen: set[int]) -> bool:
        if name is not None and name not in self._named.read:
            return not is_plain_dict(row) or self._is_reached(row.owner, holders, set())
        return _is_container(row) and self._is_unread(row.owner, holders, seen)


class CountedRow(Row):
    """A number that calls increment, which must exist but may have any value."""

    __slots__ = ("_key",)

    settable = ordered = False

    def __init__(self, row: Row, key: Any) -> None:
        self._key = key
        super().__init__(row, row.path)

    def items(self) -> dict[Any, Any]:
        return {None: type(self.owner.get(self._key))}

    def put(self, key: object, value: object) -> None:
        pass

    def name(self, key: Any) -> str:
        return self.owner.name(self._key)


def _has_items(row: Row) -> bool:
    """Returns True if code increments items of a row."""
    if type(row) is ListRow:
        return type(row.owner) is list and not row.path.foreign
    return is_plain_dict(row)


def _is_container(row: Row) -> bool:
    if is_plain_dict(row):
        return True
    return type(row) in (ListRow, SetRow) and type(row.owner) in LISTS and not row.path.foreign


@functools.lru_cache(maxsize=4096)
def words_of_class(kind: type) -> frozenset[str] | None:
    """Returns the names that the methods of a library's class contain.

    Returns None if the methods read attributes by names that they do not contain.
    """
    found: set[str] = set()
    for base in kind.__mro__:
        if base is object or owner_of_class(base) is Owner.USER:
            continue
        for function in (f for value in vars(base).values() for f in functions_of(value)):
            for names in map(names_of, _codes_in(function.__code__)):
                found |= names.words
                if (
                    names.whole
                    and base is not Module
                    and function.__name__ not in (*_TEXT, *_FILLING)
                ):
                    return None
    return frozenset(found)


def _codes_in(code: CodeType) -> list[CodeType]:
    return [code, *(inner for one in names_of(code).nested for inner in _codes_in(one))]


def is_by_name(row: Row) -> bool:
    """Returns True if a row holds variables of modules or functions,
    which code refers to by name.
    """
    if row.path.foreign:
        return False
    if type(row) is CellRow:
        return variable_of(row) is not None
    is_named = isinstance(row, NamedRow) and type(row) in (NamedRow, LibraryClassRow)
    return is_named and type(row.names) is set


def replaces_getattr(rows: Iterable[Row]) -> bool:
    """Returns True if a name `getattr` of the program leads to another function than Python's."""
    found = (row.before.get("getattr", getattr) for row in rows if type(row) is NamedRow)
    return any(value is not getattr for value in found)
