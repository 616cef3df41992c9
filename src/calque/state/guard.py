"""The guard of rows: checks that the state for which a program was compiled is unchanged."""

from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from calque.state.exchanged import containers, holders, is_as_filled, like, parts_of
from calque.state.identity import Identities
from calque.state.numbers import NUMBERS, are_numbers, have_other_numbers, is_number
from calque.state.rows import CacheRow, CellRow, DictRow, ListRow, NamedRow, Row
from calque.state.values import (
    MISSING,
    SCALARS,
    described,
    holds_more_than_attributes,
    instance_dict,
    same_keys,
    same_value,
)
from calque.state.weak import Referred, weakened

if TYPE_CHECKING:
    from calque.state.snapshot import Snapshot
    from calque.state.unread import Unread

_MOST_ADOPTED = 64
"""The number of recreated objects above which a new trace is cheaper."""
_MOST_ADOPTED_AT_ONCE = 8
"""The number of them that are looked at for numbers that changed."""
_MOST_ITEMS = 8
"""The number of items of a list above which numbers in it are always compared."""
_UNCHANGING = (tuple, MethodType)
_VARIABLES = (CellRow, DictRow, ListRow, NamedRow)
"""Rows whose contents are values of the program; others also use tuples to describe contents."""


class StateGuard:
    """Guards that rows have their earlier contents.

    In every call, identities are compared in C. If a comparison fails, values are compared one by
    one, and equal immutable ones replace the old ones.

    Args:
        rows: the rows of a snapshot, with the expected contents in their `before`.
        free: keys of rows that may hold anything, as (row, key).
        unread: attributes that are not compared.
        kept: the ids of objects that calls return or store, so that no others may replace them.

    Attributes:
        identities: the comparisons of identities.
        expected: represents the expected contents; a new object after each comparison of values,
            which may have replaced old ones with equal ones.
    """

    guarded = "contents of variables, attributes and containers"

    def __init__(
        self,
        rows: Mapping[Any, Row],
        free: Collection[tuple[Row, Any]] = (),
        unread: "Unread | None" = None,
        kept: Container[int] = (),
    ) -> None:
        self._kept = kept
        self._unread = unread
        self._free: dict[Row, set[Any]] = {}
        for row, key in free:
            self._free.setdefault(row, set()).add(key)
        self._by_owner = dict(rows)
        self._rows = [row for row in rows.values() if row.guarded]
        self._referred = Referred(self._rows, self._free, kept)
        self.identities: Identities = Identities(self._rows, self._free)
        self._outdated = False  # the identities, if other rows are compared since
        self._replaced: dict[tuple[Row, Any], None] = {}  # places whose objects a loop replaces
        self.expected: object = object()

    def holds(self) -> bool:
        """Returns True if every row has its earlier contents."""
        return self._is_same() or self._is_equal()

    def _is_same(self) -> bool:
        """Returns True if every row holds the same objects."""
        try:
            others = self.identities.others
            if not self.identities.hold() or (others and any(map(self._difference, others))):
                return False
            return self._referred.first_difference() is None
        except (ValueError, RuntimeError, AttributeError):
            return False  # an unbound variable, or a dict that another thread changes

    def _is_equal(self) -> bool:
        """Returns True if values that are not identical are equal."""
        self.expected = object()
        adopted = sum(self._adopt(row, key) for row, key in self._replaced if _is_new(row, key))
        if adopted:
            self.identities = Identities(self._rows, self._free)
            if not self._outdated and self._is_same():
                return True
        found = self.first_difference()
        ignored = False
        while found is not None:
            row, key = found
            if adopted < _MOST_ADOPTED and self._adopt(row, key):
                adopted += 1
                if len(self._replaced) < _MOST_ADOPTED:
                    self._replaced[found] = None
            elif not ignored and self._ignores():  # takes longer, so it comes second
                ignored = self._outdated = True
            else:
                self._outdated |= adopted > 0  # some rows belong to new objects now
                if self._outdated:
                    self.identities.give_up()
                return False
            found = self.first_difference()
        for row in self._rows:
            free = self._free.get(row, ())
            now = row.items()
            if type(row) is not CacheRow:
                row.before.update({k: now[k] for k in row.before if k in now and k not in free})
        if adopted or self._outdated:
            self.identities = Identities(self._rows, self._free)
            self._outdated = False
        else:
            self.identities.expect()
        return True

    def _ignores(self) -> bool:
        """Returns True if some attributes need no longer be compared."""
        if self._unread is None or not self._unread.ignore(self._by_owner.values()):
            return False
        self._rows = [row for row in self._rows if row not in self._unread.dropped]
        self._rows += self._unread.fresh()
        return True

    def _adopt(self, row: Row, key: object) -> bool:
        """Returns True if a new object has the contents of the old one, up to numbers. The rows
        of the old one then refer to the new one, and still expect the old numbers.

        This happens if a program creates an object in each call, which the next call finds, or if
        the loop around it does (a scheduler, a new list of rates).
        """
        old, new = row.before.get(key, MISSING), row.get(key)
        if old is MISSING or new is MISSING or type(old) in SCALARS or type(new) is not type(old):
            return False
        self._held_now = holders(v for r in self._rows for v in _held_by(r))
        places = self._exchanged(old, new)
        if len(places) == self._held_now[id(old)]:  # the new one is shared as the old one was
            self._held_now[id(old)] = 1
        pairs: list[tuple[Row, Any, Any, Any]] = []
        if not self._matches(old, new, pairs, {}):
            return False
        for one, place, owner, moved in pairs:
            self._by_owner.pop(place, None)
            self._by_owner[moved] = one
            one.owner = owner
            before = one.before
            one.rebase()
            one.before.update({k: v for k, v in before.items() if is_number(v)})
        for one, place in places:
            one.before[place] = new
        return True

    def _exchanged(self, old: object, new: object) -> list[tuple[Row, Any]]:
        """Returns the places of an object that another object has now."""
        return [
            (row, key)
            for row in self._rows
            for key, value in row.before.items()
            if value is old and row.get(key) is new
        ]

    def _matches(
        self, old: Any, new: Any, pairs: list[tuple[Row, Any, Any, Any]], seen: dict[int, Any]
    ) -> bool:
        if same_value(old, new) or self._referred.exchange(old, new):
            return True
        if id(old) in seen:
            return seen[id(old)] is new
        if type(old) is not type(new) or len(seen) > _MOST_ADOPTED or id(old) in self._kept:
            return False
        # Sharing must be preserved, so objects with several references are not replaced.
        if self._held_now[id(old)] > 1 or self._held_now[id(new)]:
            return False
        if any(one is new for one in seen.values()):
            return False
        seen[id(old)] = new
        if issubclass(type(old), _UNCHANGING):
            parts, others = parts_of(old), parts_of(new)
            if len(parts) != len(others):
                return False
            if not all(self._matches(a, b, pairs, seen) for a, b in zip(parts, others)):
                return False
            if instance_dict(old) is None:
                return True
        elif id(old) not in self._by_owner and holds_more_than_attributes(type(old)):
            return False
        if type(old) is FunctionType and not self._is_as_closed(old, new, pairs, seen):
            return False
        found = False
        for key, owner, moved in containers(old, new):
            row = self._by_owner.get(key)
            if row is None:
                continue
            if isinstance(key, tuple) and key[0] == "h":  # other rows have the dict's contents
                pairs.append((row, key, owner, moved))
                continue
            found = True
            now = type(row).items(like(row, owner))
            if not same_keys(now, row.before) and row.ordered:
                return False
            if now.keys() != row.before.keys():
                return False
            free = self._free.get(row, ())
            if not all(
                _differ_by_numbers(row, row.before[k], now[k])
                or k in free
                or self._matches(row.before[k], now[k], pairs, seen)
                for k in now
            ):
                return False
            pairs.append((row, key, owner, moved))
        return found

    def _is_as_closed(
        self,
        old: FunctionType,
        new: FunctionType,
        pairs: list[tuple[Row, Any, Any, Any]],
        seen: dict[int, Any],
    ) -> bool:
        """Returns True if two functions read the same globals, and variables that match."""
        if old.__globals__ is not new.__globals__:
            return False
        before, now = old.__closure__ or (), new.__closure__ or ()
        return len(before) == len(now) and all(
            self._matches(a, b, pairs, seen) if id(a) in self._by_owner else is_as_filled(a, b)
            for a, b in zip(before, now)
        )

    @contextmanager
    def holding(self) -> Iterator[None]:
        """A context manager in which every settable row has its earlier contents."""
        rows = [row for row in self._rows if row.settable and row.restored]
        now = [(row, row.items()) for row in rows if row.is_changed()]
        for row, _ in now:
            row.restore()
        try:
            yield
        finally:
            for row, items in now:
                row.assign(items)

    def why(self) -> str:
        """Returns a description of the first difference."""
        found = self.first_difference()
        if found is None:
            return "a variable has changed"
        row, key = found
        before, now = row.before.get(key, MISSING), row.get(key)
        if all(v is MISSING or type(v) in SCALARS or is_number(v) for v in (before, now)):
            return f"{row.name(key)} was {described(before)} and is {described(now)}"
        return f"{row.name(key)} now refers to a different object"

    def copied(self) -> list[tuple[Row, Any]]:
        """Returns numbers that have changed, and that code may only copy into what it appends."""
        return [] if self._unread is None else self._unread.copied(list(self._rows))

    def changed_numbers(self) -> list[tuple[Row, Any]]:
        """Returns the numbers in variables of the program that have changed."""
        self._adopt_others()
        return [
            (row, key)
            for row in self._rows
            if not row.path.foreign and row.settable and not _is_long(row)
            for key, before in row.before.items()
            if is_number(before) and key not in row.ignored
            if key not in self._free.get(row, ()) and (now := row.get(key)) is not before
            if _may_be_numbers(row, before) and have_other_numbers(before, now)
        ]

    def free_numbers(self) -> list[tuple[Row, Any]]:
        """Returns the variables that hold numbers, but are not compared."""
        return [
            (row, key)
            for row, keys in self._free.items()
            for key in keys
            if is_number(row.get(key))
        ]

    def _adopt_others(self) -> None:
        """Adopt what differs only by numbers, behind the first number that differs."""
        found = [
            (row, key)
            for row in self._rows
            if not row.path.foreign and row.settable
            for key, before in row.before.items()
            if id(before) in self._by_owner and key not in row.ignored
            if key not in self._free.get(row, ())
            if row.get(key) is not before
        ]
        adopted = [self._adopt(row, key) for row, key in found[:_MOST_ADOPTED_AT_ONCE]]
        if any(adopted):
            self._outdated = True
            self.identities.give_up()

    def first_difference(self) -> tuple[Row, Any] | None:
        """Returns the first row that differs, and the key; None if there is none."""
        for row in self._rows:
            key = self._difference(row)
            if key is not None:
                return row, key[0]
        return self._referred.first_difference()

    def _difference(self, row: Row) -> tuple[Any] | None:
        if type(row) is CacheRow:  # later calls may add entries, but an emptied cache differs
            return ("misses",) if row.is_emptied() else None
        now = row.items()
        free = self._free.get(row, ())
        for key in now.keys() - row.before.keys():
            if key not in free and key not in row.ignored:
                return (key,)
        for key, value in row.before.items():
            current = now.get(key, MISSING)
            if current is not value and key not in free and key not in row.ignored:
                if not same_value(current, value):
                    return (key,)
        ordered = row.ordered or row.read_in_order
        if free and now.keys() != row.before.keys():
            ordered = False
        if ordered and not row.ignored and not same_keys(now, row.before):
            return (next(a for a, b in zip(now, row.before) if not same_value(a, b)),)
        return None


def guard_in_place(snapshot: "Snapshot") -> StateGuard:
    """Returns the guard of everything in a snapshot whose changes were not undone.

    No call repeats these changes, so the new contents are compared, even if no code reads them.
    """
    changed = {
        (row, key)
        for row, now in snapshot.changed()
        for key in {**row.before, **now}
        if not same_value(row.before.get(key, MISSING), now.get(key, MISSING))
    }
    return guard_of(snapshot, assigned=changed)


def guard_of(
    snapshot: "Snapshot",
    free: Collection[tuple[Row, Any]] = (),
    counted: Collection[tuple[Row, Any]] = (),
    assigned: Collection[tuple[Row, Any]] = (),
    kept: Container[int] = (),
    copied: Collection[tuple[Row, Any]] = (),
) -> StateGuard:
    """Returns the guard of everything in a snapshot.

    Args:
        free: keys of its rows that may hold anything, as (row, key).
        counted: those whose number each call increments.
        assigned: other keys whose values each call changes.
        kept: the ids of objects that calls return or store.
        copied: numbers that each call copies into what it appends.
    """
    rows = weakened(snapshot.rows, snapshot.weak.values())
    unread = snapshot.namespaces.unread(counted, assigned, copied)
    if snapshot.weak:
        moved = {row: rows[key] for key, row in snapshot.rows.items()}
        free = [(moved.get(row, row), key) for row, key in free]
        unread = unread.among(moved)
    return StateGuard(rows, free, unread, kept)


def _held_by(row: Row) -> Iterator[Any]:
    """Yields what a row holds, with the objects that are keys of a dict."""
    yield from row.before.values()
    if type(row) is DictRow and not row.attribute:
        yield from (key for key in row.before if type(key) not in SCALARS)


def _is_new(row: Row, key: object) -> bool:
    """Returns True if a row holds another object than it did."""
    return row.get(key) is not row.before.get(key, MISSING)


def _differ_by_numbers(row: Row, before: Any, now: Any) -> bool:
    """Returns True if two contents of a row differ by numbers at most."""
    return _may_be_numbers(row, before) and are_numbers(before, now)


def _may_be_numbers(row: Row, value: object) -> bool:
    return type(value) in NUMBERS or isinstance(row, _VARIABLES)


def _is_long(row: Row) -> bool:
    return type(row) is ListRow and (type(row.owner) is not list or len(row.owner) > _MOST_ITEMS)
