"""Checks that rows hold the same objects as before, comparing many at a time in C."""

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import chain, repeat
from operator import attrgetter, call, is_
from types import FunctionType
from typing import Any

from calque.state.code_attributes import SPECIAL, Special
from calque.state.rows import (
    HOOKS_OF_TENSORS,
    AttributeRow,
    CellRow,
    ClassRow,
    DictRow,
    HooksRow,
    LibraryClassRow,
    ListRow,
    NamedRow,
    Row,
    SetRow,
    StateRow,
)
from calque.state.values import MISSING
from calque.state.versions import Versions, has_version, own_dict

Place = tuple[str, Any, Any, Any]
"""A compared object: the kind of place, its holder, its key there, and the object. For a list, the
length is compared, too; for a lookup, the key is passed to `dict.get`. If something is read by a
function, the function is the key.
"""

_LONG = 32
"""The length from which on a list is compared alone, which takes less time for each item."""
_content = attrgetter("cell_contents")
_only_none = frozenset((None,)).issuperset
_FILLED = (DictRow, HooksRow, ListRow, SetRow)
_CLASS, _DICT = ("__class__",), ("__dict__",)
_HOOKS = tuple(HOOKS_OF_TENSORS)
_READ_BY_PYTHON = (_CLASS, _DICT)
_HOOKS_READ = tuple(map(attrgetter, _HOOKS))
_PLAIN = frozenset(
    (
        ("__mro__", "__name__"),
        ("__code__", "__defaults__", "__kwdefaults__"),
        ("__name__", "__qualname__", "__doc__", "__module__"),
        _HOOKS,
        ("default_factory",),
        ("maxlen",),
    )
)
"""Attributes that the owner's class itself reads, whatever the program defines."""


class Identities:
    """The objects that rows hold.

    Args:
        rows: the rows.
        free: keys of some rows that may hold anything.

    Attributes:
        others: rows that it does not compare.
        empty: containers that were empty.
        versions: compare dicts that have a version.
        special: compares classes and the code of functions; None if there are none.
        unhooked: tensors that have no hooks.
        values: compare everything else.
    """

    def __init__(self, rows: Iterable[Row], free: Mapping[Row, Collection[Any]]) -> None:
        self._free = free
        self.empty: list[Any] = []
        self._versioned: list[Row] = []
        self._dicts: list[Row] = []
        self._partial: list[Row] = []
        self._mixed: list[Row] = []
        self._lists: list[Row] = []
        self._sets: list[Row] = []
        self._reads: list[tuple[Row, Callable[[Any], Any], Any]] = []
        self._cells: list[Row] = []
        self._named: list[NamedRow] = []
        self._attributes: dict[tuple[str, ...], list[Row]] = defaultdict(list)
        self.others: list[Row] = []
        for row in rows:
            self._place(row)
        self.empty.sort(key=id)  # there may be thousands, which are read faster in memory's order
        self.expect()

    def _place(self, row: Row) -> None:
        kind, in_part = type(row), bool(row.ignored or row in self._free)
        is_empty = not row.before and kind in _FILLED and row not in self._free
        if is_empty and not _is_counted_in_python(type(row.owner)):
            self.empty.append(row.owner)
        elif has_version(row):
            self._versioned.append(row)
        elif kind is DictRow and type(row.owner) in (dict, defaultdict):
            if set(map(type, row.before)) != {str}:
                (self.others if in_part else self._mixed).append(row)
            else:
                (self._partial if in_part else self._dicts).append(row)
        elif in_part:
            self.others.append(row)
        elif kind is ListRow and type(row.owner) is list:
            self._lists.append(row)
        elif kind is SetRow and type(row.owner) in (set, frozenset):
            self._sets.append(row)
        elif kind is CellRow and row.before:
            self._cells.append(row)
        elif kind in (NamedRow, ClassRow, LibraryClassRow):
            self._named.append(row)  # pyright: ignore[reportArgumentType]
        elif isinstance(row, AttributeRow) and _is_plain(row):
            self._attributes[tuple(row.before)].append(row)
        else:
            reads = _stable_reads(row)
            if reads is None:
                self.others.append(row)
            else:
                self._reads += [(row, read, key) for key, read in reads.items()]

    def expect(self) -> None:
        """Use the current `before` of the rows as the expected contents."""
        self._sources: list[Any] = []  # each returns an iterator when called
        self._expected: list[Any] = []
        dicts = [*self._dicts, *self._mixed]
        values = [value for row in dicts for value in row.before.values()]
        self._expect_values(partial(_values_of, [row.owner for row in dicts]), values)
        lists = [row for row in self._lists if len(row.before) < _LONG]
        ordered = ((self._mixed, dict.keys), (lists, dict.values), (self._sets, dict.values))
        for rows, read in ordered:
            owners = [row.owner for row in rows]
            items = [item for row in rows for item in read(row.before)]
            self._expect_values(partial(chain.from_iterable, owners), items)
        cells = [row.owner for row in self._cells]
        self._expect_values(partial(map, _content, cells), [r.before[None] for r in self._cells])
        reads, owners = [read for _, read, _ in self._reads], [r.owner for r, _, _ in self._reads]
        values = [row.before[key] for row, _, key in self._reads]
        self._expect_values(partial(map, call, reads, owners), values)
        special: list[Callable[[], bool]] = []
        self.unhooked: list[Any] = []
        self._expect_versions()
        for names, rows in self._attributes.items():
            if names in SPECIAL:
                special.append(_comparing(names, rows))
            else:
                self._expect_attributes(names, rows)
        self._expect_names()
        self.values: list[Callable[[], bool]] = []
        if len(self._sources) == 1:
            self.values.append(partial(_same, self._sources[0], self._expected))
        elif self._sources:
            source = partial(_chained, self._sources)
            self.values.append(partial(_same, source, self._expected))
        long = [row for row in self._lists if len(row.before) >= _LONG]
        self.values += [partial(_same_items, r.owner, list(r.before.values())) for r in long]
        self._expect_sizes()
        if self._watched:
            self.values.append(self._has_no_new_names)
        self._checks: list[Callable[[], bool]] = []
        if self.unhooked:
            self._checks.append(self.have_no_hooks)
        if self.empty:
            self._checks.append(partial(_all_empty, self.empty))
        self._checks += [versions.hold for versions in self.versions]
        self._checks += self.values
        self.special: Special | None = Special(special) if special else None
        if self.special is not None:
            self._checks.append(self.special.hold)

    def give_up(self) -> None:
        """Make `hold` return False, until the identities are created or expected anew."""
        self._checks = [bool]

    def _expect_sizes(self) -> None:
        sized = (*self._dicts, *self._partial, *self._mixed, *self._lists, *self._sets)
        if sized:
            sizes = [len(row.before) for row in sized]
            self.values.append(partial(_as_long, [row.owner for row in sized], sizes))
        keyed = (*self._dicts, *self._partial)
        keys = [key for row in keyed for key in row.before]
        if keys:
            self.values.append(partial(_same_strings, [row.owner for row in keyed], keys))

    def places(self) -> list[Place] | None:
        """Returns the objects that `values` compares, by position; None if it compares more than
        single objects.
        """
        if self._dicts or self._mixed or self._sets or self._watched:
            return None
        found: list[Place] = []
        for row in self._lists:
            found.append(("length", row.owner, None, len(row.before)))
            found += [("item", row.owner, index, value) for index, value in row.before.items()]
        found += [("variable", row.owner, None, row.before[None]) for row in self._cells]
        found += [("read", row.owner, read, row.before[key]) for row, read, key in self._reads]
        for names, rows in self._attributes.items():
            if names == _DICT:
                rows = [row for row in rows if row not in self._owning]
                if not _have_plain_dicts([row.owner for row in rows]):
                    return None
            if names not in SPECIAL and not self._are_unhooked(names, rows):
                items = [(r.owner, name, value) for r in rows for name, value in r.before.items()]
                found += [("attribute", *item) for item in items]
        found += [("looked up", get, name, value) for get, name, value in self._held]
        return None if self._partial else found

    def _expect_versions(self) -> None:
        """Compare dicts by their versions, those of objects together with the objects' having
        them.
        """
        versioned = {id(row.owner) for row in self._versioned}
        owning = [
            row
            for row in self._attributes.get(_DICT, ())
            if id(row.before["__dict__"]) in versioned
            and _have_plain_dicts([row.owner])
            and row.owner.__dict__ is row.before["__dict__"]
        ]
        self._owning = set(owning)
        owned = {id(row.before["__dict__"]) for row in owning}
        own = [row for row in self._versioned if id(row.owner) in owned]
        others = [row for row in self._versioned if id(row.owner) not in owned]
        self.versions: list[Versions] = []
        if own:
            self.versions.append(Versions(own, self._free, [row.owner for row in owning]))
        if others:
            self.versions.append(Versions(others, self._free))

    def _expect_values(self, source: object, values: Iterable[Any]) -> None:
        before = len(self._expected)
        self._expected += values
        if len(self._expected) > before:
            self._sources.append(source)

    def _expect_attributes(self, names: tuple[str, ...], rows: list[Row]) -> None:
        if names == _DICT:
            self._expect_dicts([row for row in rows if row not in self._owning])
            return
        owners = [row.owner for row in rows]
        values = [value for row in rows for value in row.before.values()]
        if self._are_unhooked(names, rows):
            self.unhooked += owners
        elif len(names) == 1:
            self._expect_values(partial(map, attrgetter(*names), owners), values)
        else:
            read = partial(map, attrgetter(*names), owners)
            self._expect_values(partial(_flattened, read), values)

    @staticmethod
    def _are_unhooked(names: tuple[str, ...], rows: list[Row]) -> bool:
        return names == _HOOKS and all(v is None for row in rows for v in row.before.values())

    def _expect_dicts(self, rows: list[Row]) -> None:
        """Compare the dicts of objects; for those whose class overrides attribute access, this
        takes longer.
        """
        plain = [row for row in rows if _have_plain_dicts([row.owner])]
        others = [row for row in rows if not _have_plain_dicts([row.owner])]
        source = partial(map, own_dict, [row.owner for row in plain])
        self._expect_values(source, [row.before["__dict__"] for row in plain])
        owners, names = [row.owner for row in others], repeat("__dict__")
        source = partial(map, object.__getattribute__, owners, names)
        self._expect_values(source, [row.before["__dict__"] for row in others])

    def _expect_names(self) -> None:
        held: list[tuple[Any, str, Any]] = []
        self._watched: list[NamedRow] = []
        self._held = held
        for row in self._named:
            held += [(row.owner.get, name, value) for name, value in row.before.items()]
            if row.path.foreign or len(row.names) > len(row.owner):
                self._watched.append(row)
            else:  # includes missing names
                absent = (name for name in row.names if name not in row.before)
                held += [(row.owner.get, name, MISSING) for name in absent]
        for row in self._partial:
            free = {*row.ignored, *self._free.get(row, ())}
            held += [(row.owner.get, k, v) for k, v in row.before.items() if k not in free]
        gets, names, values = [list(column) for column in zip(*held)] or [[]] * 3
        source = partial(map, call, gets, names, repeat(MISSING))
        self._expect_values(source, values)
        self._own = [row for row in self._watched if not row.path.foreign]
        self._foreign = [row for row in self._watched if row.path.foreign]
        self._look_at_names()

    def _look_at_names(self) -> None:
        self._names = [tuple(row.owner) for row in self._own]
        self._spaces = [row.owner for row in self._own]
        self._libraries = [row.owner for row in self._foreign]
        self._lengths = list(map(len, self._libraries))

    def hold(self) -> bool:
        """Returns True if every row except the `others` holds the same objects; equal objects are
        different.
        """
        for check in self._checks:  # noqa: SIM110 (a generator would cost half a microsecond)
            if not check():
                return False
        return True

    def have_no_hooks(self) -> bool:
        """Returns True if the `unhooked` tensors still have none."""
        try:
            return all(_only_none(map(read, self.unhooked)) for read in _HOOKS_READ)
        except TypeError:  # a dict is not hashable
            return False

    def _has_no_new_names(self) -> bool:
        """Returns True if no name that the program found missing has appeared in a namespace."""
        if (
            list(map(len, self._libraries)) == self._lengths
            and list(map(tuple, self._spaces)) == self._names
        ):
            return True
        if any(row.items().keys() != row.before.keys() for row in self._watched):
            return False
        self._look_at_names()
        return True


@functools.lru_cache(maxsize=1024)
def _is_counted_in_python(kind: type) -> bool:
    """Returns True if a class says in Python whether its objects are empty, as lazy dicts do."""
    methods = (getattr(kind, name, None) for name in ("__bool__", "__len__"))
    return any(isinstance(one, FunctionType) for one in methods)


def _all_empty(containers: list[Any]) -> bool:
    return not any(containers)


def _same(source: Callable[[], Iterable[Any]], expected: list[Any]) -> bool:
    return all(map(is_, source(), expected))


def _same_items(items: list[Any], expected: list[Any]) -> bool:
    return all(map(is_, items, expected))


def _flattened(source: Callable[[], Iterable[Any]]) -> Iterable[Any]:
    return chain.from_iterable(source())


def _chained(sources: list[Callable[[], Iterable[Any]]]) -> Iterable[Any]:
    return chain.from_iterable(map(call, sources))


def _as_long(containers: list[Any], lengths: list[int]) -> bool:
    return list(map(len, containers)) == lengths


def _same_strings(dicts: list[dict[str, Any]], keys: list[str]) -> bool:
    return list(chain.from_iterable(dicts)) == keys


def _values_of(dicts: list[dict[Any, Any]]) -> Iterable[Any]:
    return chain.from_iterable(map(dict.values, dicts))


def _comparing(names: tuple[str, ...], rows: list[Row]) -> Callable[[], bool]:
    """Returns a function that compares special attributes."""
    owners = [row.owner for row in rows]
    values = [value for row in rows for value in row.before.values()]
    if names == _CLASS:
        return partial(_same, partial(map, type, owners), values)
    read = partial(map, attrgetter(*names), owners)
    return partial(_same, partial(_flattened, read), values)


def _have_plain_dicts(owners: list[Any]) -> bool:
    return all(type(owner).__getattribute__ is object.__getattribute__ for owner in owners)


def _is_plain(row: AttributeRow) -> bool:
    names = tuple(row.before)
    return names == tuple(row.reads) and (names in _READ_BY_PYTHON or names in _PLAIN)


def _stable_reads(row: Row) -> dict[Any, Callable[[Any], Any]] | None:
    """Returns functions that read a row's contents, if they return the very objects that it holds;
    None if there are no such functions.
    """
    if type(row) is StateRow:
        reads = {None: row.read}
    elif isinstance(row, AttributeRow):
        reads = row.reads
    else:
        return None
    try:
        stable = all(read(row.owner) is row.before[key] for key, read in reads.items())
    except (AttributeError, KeyError):
        return None
    return reads if stable else None
