"""The guard over rows: whether all that a program was compiled for is still there."""

import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter, call, is_
from typing import Any

import torch

from calque.state.rows import (
    AttributeRow,
    CacheRow,
    CellRow,
    ClassRow,
    DictRow,
    HooksRow,
    ListRow,
    NamedRow,
    Row,
    SetRow,
)
from calque.state.values import MISSING, SCALARS, same_keys, same_value, spoken

_values = dict.values
_content = attrgetter("cell_contents")
_order = attrgetter("__mro__")
_title = attrgetter("__name__")
_hooks = attrgetter("_backward_hooks")
_late_hooks = attrgetter("_post_accumulate_grad_hooks")


_FILLED = (DictRow, HooksRow, ListRow, SetRow)
_MOST_ADOPTED = 64
"""How many objects may have been made anew before it is cheaper to trace."""


class StateGuard:
    """That rows hold what they held.

    The comparisons that serve every call are of identities, and made in C; where one fails, the
    values are looked at one by one, and equal ones that cannot change take the place of the old.

    Args:
        rows: the rows, as a snapshot has them, with what is expected in their `before`.
        free: keys of rows that may hold anything, as (row, key).
    """

    guarded = "what variables, attributes and containers hold"

    def __init__(self, rows: Mapping[Any, Row], free: Collection[tuple[Row, Any]] = ()) -> None:
        self._free: dict[Row, set[Any]] = {}
        for row, key in free:
            self._free.setdefault(row, set()).add(key)
        self._by_owner = dict(rows)
        self._rows = [row for row in rows.values() if row.guarded]
        self._sort()

    def _is_empty(self, row: Row) -> bool:
        return not row.before and type(row) in _FILLED and row not in self._free

    def _place(self, row: Row) -> list[Any]:
        kind = type(row)
        if row in self._free or row.ignored:
            return self._others
        if self._is_empty(row):
            return self._empty
        if kind is DictRow and type(row.owner) in (dict, defaultdict):
            return self._dicts if set(map(type, row.before)) == {str} else self._mixed
        if kind is ListRow and type(row.owner) is list:
            return self._lists
        if kind is CellRow and row.before:
            return self._cells
        if kind in (NamedRow, ClassRow):
            return self._named
        if kind is AttributeRow and isinstance(row.owner, torch.Tensor):
            return self._tensors
        if isinstance(row, AttributeRow) and row.reads.keys() == {"__class__"}:
            return self._kinds
        if isinstance(row, AttributeRow) and "__mro__" in row.reads:
            return self._classes
        return self._others

    def _sort(self) -> None:
        self._empty: list[Any] = []
        self._dicts: list[Row] = []
        self._mixed: list[Row] = []
        self._lists: list[Row] = []
        self._cells: list[Row] = []
        self._named: list[Row] = []
        self._kinds: list[Row] = []
        self._classes: list[Row] = []
        self._tensors: list[Row] = []
        self._others: list[Row] = []
        for row in self._rows:
            self._place(row).append(row.owner if self._is_empty(row) else row)
        self._expect()

    def _expect(self) -> None:
        rows = self._dicts
        self._dict_owners = [row.owner for row in rows]
        self._dict_keys = [tuple(row.before) for row in rows]
        self._dict_values = [v for row in rows for v in row.before.values()]
        rows = self._mixed
        self._mixed_owners = [row.owner for row in rows]
        self._mixed_lengths = [len(row.before) for row in rows]
        self._mixed_keys = [key for row in rows for key in row.before]
        self._mixed_values = [v for row in rows for v in row.before.values()]
        self._list_owners = [row.owner for row in self._lists]
        self._list_lengths = [len(row.before) for row in self._lists]
        self._list_values = [v for row in self._lists for v in row.before.values()]
        self._variables = [row.owner for row in self._cells]
        self._contents = [row.before[None] for row in self._cells]
        self._objects = [row.owner for row in self._kinds]
        self._types = [row.before["__class__"] for row in self._kinds]
        self._bases = [row.owner for row in self._classes]
        self._orders = [row.before["__mro__"] for row in self._classes]
        self._titles = [row.before["__name__"] for row in self._classes]
        self._leaves = [row.owner for row in self._tensors]
        self._hooks = [row.before.get("_backward_hooks") for row in self._tensors]
        self._late = [row.before.get("_post_accumulate_grad_hooks") for row in self._tensors]
        named = [(row.owner.get, k, v) for row in self._named for k, v in row.before.items()]
        self._gets: list[Callable[..., Any]] = [get for get, _, _ in named]
        self._names = [key for _, key, _ in named]
        self._held = [value for _, _, value in named]
        self._spaces = [(row.owner, len(row.owner), row) for row in self._named]
        self._own = [row for row in self._named if not row.path.foreign]
        self._own_spaces = [row.owner for row in self._own]
        self._own_names = [tuple(row.owner) for row in self._own]

    def holds(self) -> bool:
        """Whether every row holds what it held."""
        try:
            return (not any(self._empty) and self._is_identical()) or self._is_equal()
        except (ValueError, RuntimeError):  # not bound any more; changed by another thread
            return self._is_equal()

    def _is_identical(self) -> bool:
        if not all(
            map(is_, chain.from_iterable(map(_values, self._dict_owners)), self._dict_values)
        ):
            return False
        if list(map(tuple, self._dict_owners)) != self._dict_keys:
            return False
        if self._mixed_owners and not self._are_mixed_identical():
            return False
        if self._list_owners and not (
            list(map(len, self._list_owners)) == self._list_lengths
            and all(map(is_, chain.from_iterable(self._list_owners), self._list_values))
        ):
            return False
        if not all(map(is_, map(_content, self._variables), self._contents)):
            return False
        if self._leaves and not (
            all(map(is_, map(_hooks, self._leaves), self._hooks))
            and all(map(is_, map(_late_hooks, self._leaves), self._late))
        ):
            return False
        if not all(map(is_, map(type, self._objects), self._types)):
            return False
        if not all(map(is_, map(_order, self._bases), self._orders)):
            return False
        if list(map(_title, self._bases)) != self._titles:
            return False
        if not all(map(is_, map(call, self._gets, self._names), self._held)):
            return False
        for index, (owner, length, row) in enumerate(self._spaces):
            if len(owner) != length:  # has a name that the program found missing appeared?
                if row.items().keys() != row.before.keys():
                    return False
                self._spaces[index] = owner, len(owner), row
        names = list(map(tuple, self._own_spaces))
        if names != self._own_names:  # one may have come for another that has gone
            if any(row.items().keys() != row.before.keys() for row in self._own):
                return False
            self._own_names = names
        return not any(map(self._difference, self._others))

    def _are_mixed_identical(self) -> bool:
        """The same of dicts whose keys are no strings, which are compared by identity."""
        owners = self._mixed_owners
        return (
            list(map(len, owners)) == self._mixed_lengths
            and all(map(is_, chain.from_iterable(owners), self._mixed_keys))
            and all(map(is_, chain.from_iterable(map(_values, owners)), self._mixed_values))
        )

    def _is_equal(self) -> bool:
        """Whether what is not the same object is an equal value."""
        found = self._differing()
        adopted = 0
        while found is not None:
            row, key = found
            adopted += 1
            if adopted > _MOST_ADOPTED or not self._adopt(row, key):
                return False
            found = self._differing()
        if adopted:
            self._sort()
        for row in self._rows:
            free = self._free.get(row, ())
            now = row.items()
            if type(row) is not CacheRow:
                row.before.update({k: now[k] for k in row.before if k in now and k not in free})
        self._expect()
        return True

    def _adopt(self, row: Row, key: Any) -> bool:
        """Whether another object holds what the old one held; its rows are then those of the new.

        So it is where a program makes an object anew at each call, which the next call finds.
        """
        old, new = row.before.get(key, MISSING), row.get(key)
        if old is MISSING or new is MISSING or not _containers(old, new):
            return False
        self._held_now = Counter(id(v) for r in self._rows for v in r.before.values())
        pairs: list[tuple[Row, Any, Any, Any]] = []
        if not self._matches(old, new, pairs, {}):
            return False
        for one, place, owner, moved in pairs:
            self._by_owner.pop(place, None)
            self._by_owner[moved] = one
            one.owner = owner
            one.rebase()
        row.before[key] = new
        return True

    def _matches(
        self, old: Any, new: Any, pairs: list[tuple[Row, Any, Any, Any]], seen: dict[int, Any]
    ) -> bool:
        if same_value(old, new):
            return True
        if id(old) in seen:
            return seen[id(old)] is new
        if type(old) is not type(new) or len(seen) > _MOST_ADOPTED:
            return False
        # An object that several rows hold is one object for the program: so must the new one be.
        if self._held_now[id(old)] > 1 or self._held_now[id(new)]:
            return False
        seen[id(old)] = new
        if isinstance(old, tuple):
            same = len(old) == len(new)
            return same and all(self._matches(a, b, pairs, seen) for a, b in zip(old, new))
        found = False
        for key, owner, moved in _containers(old, new):
            row = self._by_owner.get(key)
            if row is None:
                continue
            found = True
            now = type(row).items(_like(row, owner))
            if not same_keys(now, row.before) and row.ordered:
                return False
            if now.keys() != row.before.keys():
                return False
            if not all(self._matches(row.before[k], now[k], pairs, seen) for k in now):
                return False
            pairs.append((row, key, owner, moved))
        return found

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Within, every row that can be set holds what it held."""
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
        """What the first row that differs held and holds."""
        found = self._differing()
        if found is None:
            return "a variable changed"
        row, key = found
        before, now = row.before.get(key, MISSING), row.get(key)
        if all(v is MISSING or type(v) in SCALARS for v in (before, now)):
            return f"{row.name(key)} was {spoken(before)} and is {spoken(now)}"
        return f"{row.name(key)} is another object than it was"

    def _differing(self) -> tuple[Row, Any] | None:
        for row in self._rows:
            key = self._difference(row)
            if key is not None:
                return row, key[0]
        return None

    def _difference(self, row: Row) -> tuple[Any] | None:
        if type(row) is CacheRow:  # further calls fill it; one that was emptied has other values
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
        if row.ordered and not free and not row.ignored and not same_keys(now, row.before):
            return (next(a for a, b in zip(now, row.before) if not same_value(a, b)),)
        return None


def _containers(old: Any, new: Any) -> list[tuple[Any, Any, Any]]:
    """The rows that two objects of one class may have: the key, the new container and its key."""
    found: list[tuple[Any, Any, Any]] = [(id(old), new, id(new))]
    found += [((mark, id(old)), new, (mark, id(new))) for mark in ("k", "s", "f", "n")]
    before, now = getattr(old, "__dict__", None), getattr(new, "__dict__", None)
    if isinstance(before, dict) and isinstance(now, dict):
        found += [(("d", id(old)), now, ("d", id(new))), (id(before), now, id(now))]
    return found


def _like(row: Row, owner: Any) -> Any:
    """The row, of another container."""
    other = copy.copy(row)
    other.owner = owner
    return other
