"""Numbers and strings in Python state that no traced code reads."""

import functools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import CodeType, SimpleNamespace
from typing import Any

from torch.nn import Module

from calque.state.contents import elements_of
from calque.state.library_values import functions_of
from calque.state.names import names_of
from calque.state.ownership import Owner, owner_of_class
from calque.state.reads import reads_of
from calque.state.rows import CellRow, DictRow, ListRow, NamedRow, Row, SetRow
from calque.state.values import ATOMIC, MISSING

_TEXT = ("__repr__", "extra_repr")
"""Methods that insert attributes named in a format string."""
_FILLING = ("__setstate__",)
"""Methods that set an object's attributes and read none."""
_DICTS = (dict, defaultdict, OrderedDict, Counter)
WITHOUT_METHODS = (SimpleNamespace,)
"""Classes in C that read all attributes of an object (to compare or print it)."""
_LISTS = (list, deque, set)
_REACHED = (*_DICTS, *_LISTS, *WITHOUT_METHODS)

Place = tuple[Row, Any]
"""A row and a key."""


@dataclass(frozen=True)
class Named:
    """A trace's knowledge about the names that code uses.

    Attributes:
        codes: the code that ran and looks up only names that it contains.
        words: names that are read by other means.
        computed: names of attributes that code has computed.
        rows: rows whose keys are read only if code names them.
        dicts: whether dicts may be ignored too, because no package's code searches objects.
        objects: namespaces without methods, with the rows of their attributes.
        unnamed: dicts that are not held under a name, by id.
        counted: variables whose number the trace increments, as each call does.
        assigned: other variables that the trace changes.
    """

    codes: Collection[CodeType] = ()
    words: Collection[str] = ()
    computed: Collection[str] = ()
    rows: Collection[Row] = ()
    dicts: bool = False
    objects: Collection[tuple[Row, Any]] = ()
    unnamed: Collection[int] = ()
    counted: Collection[Place] = ()
    assigned: Collection[Place] = ()
    read: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)

    def look(self) -> None:
        """Read the code, which is slow and rarely needed."""
        if self.read:
            return
        for found in (self.read, self.used, self.passed):
            found.update(self.computed)
        self.read.update(self.words)
        self.keys.update(self.words)
        # A first increment of an instance's number may read the class attribute.
        self.read.update(key for _, key in self.assigned if isinstance(key, str))
        for reads in map(reads_of, self.codes):
            self.read.update(reads.values)
            self.keys.update(reads.keys)
            self.called.update(reads.called)
            self.used.update(reads.used)
            self.passed.update(reads.passed)


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
        self.dropped: set[Row] = set()

    def among(self, rows: Mapping[Row, Row]) -> "Unread":
        """Returns the same state, for the rows that replace these."""

        def moved(places: Collection[Place]) -> set[Place]:
            return {(rows.get(row, row), key) for row, key in places}

        old = self._named
        found = [rows.get(row, row) for row in old.rows]
        counted, assigned = moved(old.counted), moved(old.assigned)
        return Unread(replace(old, rows=found, counted=counted, assigned=assigned))

    def ignore(self, rows: Collection[Row]) -> bool:
        """Make rows ignore unread state that has changed; returns True if there was any.

        Args:
            rows: all rows of the guard.
        """
        if self._named.rows or self._named.dicts:
            self._named.look()
        changed = [self._ignore(row) for row in (*self._named.rows, *self._dicts(rows))]
        dropped = set(self._lists(rows)) - self.dropped
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
        if _has_items(row):
            if name in self._named.keys:
                return False
        elif not isinstance(name, str) or name in self._named.read or _is_special(name):
            return False
        if appears and name in self._named.called:  # it now hides a method, or no longer does
            return False
        if (row, key) in self._named.counted:
            if key in row.ignored or type(before) is not int or type(after) is not int:
                return False
            self._fresh.append(CountedRow(row, key))
            return True
        if (row, key) in self._named.assigned or (row, None) in self._named.assigned:
            return False
        if key in row.ignored:
            return (before is MISSING) is not (after is MISSING)
        return before is not after and type(before) in ATOMIC and type(after) in ATOMIC

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
            holders = _holders(rows, self._by_name())
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
            if _is_plain_dict(row) and not self._is_reached(row.owner, holders, seen):
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
        found = [row for row in rows if _is_container(row) and row.is_changed()]
        found = [row for row in found if all(one is not row for one, _ in self._named.assigned)]
        if found:
            holders = _holders(rows, self._by_name())
            yield from (row for row in found if self._is_unread(row.owner, holders, set()))

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
            return not _is_plain_dict(row) or self._is_reached(row.owner, holders, set())
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


Holders = dict[int, list[tuple[Row, str | None]]]
"""The holders of dicts, by id: the row and its name there; None if it has no name."""


def _is_special(name: str) -> bool:
    """Returns True if Python itself reads a name."""
    return name.startswith("__") and name.endswith("__")


def _is_plain_dict(row: Row) -> bool:
    if type(row) is not DictRow or row.attribute or row.path.foreign:
        return False
    return type(row.owner) in _DICTS


def _has_items(row: Row) -> bool:
    """Returns True if code increments items of a row."""
    if type(row) is ListRow:
        return type(row.owner) is list and not row.path.foreign
    return _is_plain_dict(row)


def _is_container(row: Row) -> bool:
    if _is_plain_dict(row):
        return True
    return type(row) in (ListRow, SetRow) and type(row.owner) in _LISTS and not row.path.foreign


def variable_of(row: Row) -> str | None:
    """Returns the name of a cell's variable."""
    path = row.path
    return path.key if path.parent is None and isinstance(path.key, str) else None


def _holders(rows: Iterable[Row], by_name: Collection[Row]) -> Holders:
    """Returns the holders of each container and each object without methods.

    Args:
        by_name: rows that are read only by name.
    """
    found: Holders = defaultdict(list)
    for row in rows:
        for key, value in row.before.items():
            if type(value) in _REACHED:
                found[id(value)].append((row, _name_in(row, key, by_name)))
            elif type(value) not in ATOMIC:
                for one in _inside(value):
                    found[id(one)].append((row, None))
    return found


def _name_in(row: Row, key: object, by_name: Collection[Row]) -> str | None:
    """Returns the name by which code refers to a row's contents."""
    if row not in by_name and not _is_plain_dict(row):
        return None
    if type(row) is CellRow:
        return variable_of(row)
    return key if isinstance(key, str) and not _is_special(key) else None


def _inside(value: object) -> Iterator[Any]:
    """Yields the dicts in a value without its own row."""
    stack = [value] if isinstance(value, tuple | frozenset) else []
    while stack:
        for one in elements_of(stack.pop()):
            if isinstance(one, tuple | frozenset):
                stack.append(one)
            elif type(one) in _REACHED:
                yield one


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
    return type(row) is NamedRow and type(row.names) is set
