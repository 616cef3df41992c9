"""Whether rows hold the very objects that they held: compared in C, many rows at a time."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from operator import attrgetter, call, is_
from typing import Any

from calque.state.rows import (
    AttributeRow,
    CellRow,
    ClassRow,
    DictRow,
    HooksRow,
    ListRow,
    NamedRow,
    Row,
    SetRow,
)

_values = dict.values
_content = attrgetter("cell_contents")
_FILLED = (DictRow, HooksRow, ListRow, SetRow)
_PLAIN = frozenset(
    (
        ("__mro__", "__name__"),
        ("__code__", "__defaults__", "__kwdefaults__"),
        ("_backward_hooks", "_post_accumulate_grad_hooks"),
        ("default_factory",),
        ("maxlen",),
    )
)
"""Attributes that the class of the owner reads itself, whatever the program has defined."""


def _same(values: Iterable[Any], expected: Iterable[Any]) -> bool:
    return all(map(is_, values, expected))


class Identities:
    """What rows hold, object by object.

    Args:
        rows: the rows.
        free: keys of some rows that may hold anything.

    Attributes:
        others: rows of which it says nothing.
    """

    def __init__(self, rows: Iterable[Row], free: Mapping[Row, Collection[Any]]) -> None:
        self._free = free
        self._empty: list[Any] = []
        self._dicts: list[Row] = []
        self._partial: list[Row] = []
        self._mixed: list[Row] = []
        self._lists: list[Row] = []
        self._cells: list[Row] = []
        self._named: list[Row] = []
        self._attributes: dict[tuple[str, ...], list[Row]] = defaultdict(list)
        self.others: list[Row] = []
        for row in rows:
            self._place(row)
        self.expect()

    def _place(self, row: Row) -> None:
        kind, in_part = type(row), bool(row.ignored or row in self._free)
        if not row.before and kind in _FILLED and row not in self._free:
            self._empty.append(row.owner)
        elif kind is DictRow and type(row.owner) in (dict, defaultdict):
            if set(map(type, row.before)) != {str}:
                (self.others if in_part else self._mixed).append(row)
            else:
                (self._partial if in_part else self._dicts).append(row)
        elif in_part:
            self.others.append(row)
        elif kind is ListRow and type(row.owner) is list:
            self._lists.append(row)
        elif kind is CellRow and row.before:
            self._cells.append(row)
        elif kind in (NamedRow, ClassRow):
            self._named.append(row)
        elif isinstance(row, AttributeRow) and _is_plain(row):
            self._attributes[tuple(row.before)].append(row)
        else:
            self.others.append(row)

    def expect(self) -> None:
        """Expect what the rows say now that they held."""
        self._dict_owners = [row.owner for row in self._dicts]
        self._dict_values = [v for row in self._dicts for v in row.before.values()]
        self._keyed = [row.owner for row in (*self._dicts, *self._partial)]
        self._keys = [tuple(row.before) for row in (*self._dicts, *self._partial)]
        self._mixed_owners = [row.owner for row in self._mixed]
        self._mixed_lengths = [len(row.before) for row in self._mixed]
        self._mixed_keys = [key for row in self._mixed for key in row.before]
        self._mixed_values = [v for row in self._mixed for v in row.before.values()]
        self._list_owners = [row.owner for row in self._lists]
        self._list_lengths = [len(row.before) for row in self._lists]
        self._list_values = [v for row in self._lists for v in row.before.values()]
        self._variables = [row.owner for row in self._cells]
        self._contents = [row.before[None] for row in self._cells]
        self._expect_names()
        self._attributes_read = [
            (
                type if names == ("__class__",) else attrgetter(*names),
                len(names) > 1,
                [row.owner for row in rows],
                [value for row in rows for value in row.before.values()],
            )
            for names, rows in self._attributes.items()
        ]

    def _expect_names(self) -> None:
        held = [(row.owner.get, k, v) for row in self._named for k, v in row.before.items()]
        for row in self._partial:
            free = {*row.ignored, *self._free.get(row, ())}
            held += [(row.owner.get, k, v) for k, v in row.before.items() if k not in free]
        self._gets: list[Callable[..., Any]] = [get for get, _, _ in held]
        self._names = [key for _, key, _ in held]
        self._held = [value for _, _, value in held]
        self._spaces = [(row.owner, len(row.owner), row) for row in self._named]
        self._own = [row for row in self._named if not row.path.foreign]
        self._own_spaces = [row.owner for row in self._own]
        self._own_names = [tuple(row.owner) for row in self._own]

    def hold(self) -> bool:
        """Whether every row but the `others` holds what it held; an equal object is another one."""
        return (
            not any(self._empty)
            and _same(chain.from_iterable(map(_values, self._dict_owners)), self._dict_values)
            and list(map(tuple, self._keyed)) == self._keys
            and (not self._mixed_owners or self._holds_mixed())
            and (not self._list_owners or self._holds_lists())
            and _same(map(_content, self._variables), self._contents)
            and all(map(_holds_attributes, self._attributes_read))
            and _same(map(call, self._gets, self._names), self._held)
            and self._has_no_new_names()
        )

    def _holds_mixed(self) -> bool:
        """The same of dicts whose keys are no strings: these are compared by identity."""
        owners = self._mixed_owners
        return (
            list(map(len, owners)) == self._mixed_lengths
            and _same(chain.from_iterable(owners), self._mixed_keys)
            and _same(chain.from_iterable(map(_values, owners)), self._mixed_values)
        )

    def _holds_lists(self) -> bool:
        owners = self._list_owners
        same_length = list(map(len, owners)) == self._list_lengths
        return same_length and _same(chain.from_iterable(owners), self._list_values)

    def _has_no_new_names(self) -> bool:
        """Whether no name has appeared in a namespace that the program found missing."""
        for index, (owner, length, row) in enumerate(self._spaces):
            if len(owner) != length:
                if row.items().keys() != row.before.keys():
                    return False
                self._spaces[index] = owner, len(owner), row
        names = list(map(tuple, self._own_spaces))
        if names != self._own_names:  # one may have come for another that has gone
            if any(row.items().keys() != row.before.keys() for row in self._own):
                return False
            self._own_names = names
        return True


def _is_plain(row: AttributeRow) -> bool:
    names = tuple(row.before)
    return names == tuple(row.reads) and (names == ("__class__",) or names in _PLAIN)


def _holds_attributes(
    group: tuple[Callable[[Any], Any], bool, list[Any], list[Any]],
) -> bool:
    read, several, owners, expected = group
    values = map(read, owners)
    return _same(chain.from_iterable(values) if several else values, expected)
