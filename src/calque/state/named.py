"""How the code of a trace refers to the state: by which names, and through what it holds."""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, SimpleNamespace
from typing import Any

from calque.state.contents import elements_of
from calque.state.reads import reads_of, reads_without
from calque.state.rows import CellRow, DictRow, Row
from calque.state.values import ATOMIC

_DICTS = (dict, defaultdict, OrderedDict, Counter)
WITHOUT_METHODS = (SimpleNamespace,)
"""Classes in C that read all attributes of an object (to compare or print it)."""
LISTS = (list, deque, set)
_REACHED = (*_DICTS, *LISTS, *WITHOUT_METHODS)

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
        searched: whether code of packages or of Python's library searches objects.
        reached: whether code reaches variables of functions that it does not name.
        objects: namespaces without methods, with the rows of their attributes.
        unnamed: dicts that are not held under a name, by id.
        given: objects among the arguments, by id.
        counted: variables whose number the trace increments, as each call does.
        assigned: other variables that the trace changes.
        copied: numbers that each call only copies into what it appends, apart from counting.
        replaced: whether the code may call another `getattr` than Python's.
    """

    codes: Collection[CodeType] = ()
    words: Collection[str] = ()
    computed: Collection[str] = ()
    rows: Collection[Row] = ()
    dicts: bool = False
    searched: bool = True
    reached: bool = False
    objects: Collection[tuple[Row, Any]] = ()
    unnamed: Collection[int] = ()
    given: Collection[int] = ()
    counted: Collection[Place] = ()
    assigned: Collection[Place] = ()
    copied: Collection[Place] = ()
    replaced: bool = False
    read: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)
    added: set[str] = field(default_factory=set)

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
        for code in self.codes:
            reads = reads_without(code, frozenset(), True) if self.replaced else reads_of(code)
            self.read.update(reads.values)
            self.keys.update(reads.keys)
            self.called.update(reads.called)
            self.used.update(reads.used)
            self.passed.update(reads.passed)
            self.added.update(reads.added)


Holders = dict[int, list[tuple[Row, str | None]]]
"""The holders of dicts, by id: the row and its name there; None if it has no name."""


def is_special(name: str) -> bool:
    """Returns True if Python itself reads a name."""
    return name.startswith("__") and name.endswith("__")


def is_plain_dict(row: Row) -> bool:
    """Returns True if a row is that of a dict of the program, of a class of Python's."""
    if type(row) is not DictRow or row.attribute or row.path.foreign:
        return False
    return type(row.owner) in _DICTS


def variable_of(row: Row) -> str | None:
    """Returns the name of a cell's variable."""
    path = row.path
    return path.key if path.parent is None and isinstance(path.key, str) else None


def holders_of(rows: Iterable[Row], by_name: Collection[Row]) -> Holders:
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
    if row not in by_name and not is_plain_dict(row):
        return None
    if type(row) is CellRow:
        return variable_of(row)
    return key if isinstance(key, str) and not is_special(key) else None


def _inside(value: object) -> Iterator[Any]:
    """Yields the dicts in a value without its own row."""
    stack = [value] if issubclass(type(value), tuple | frozenset) else []
    while stack:
        for one in elements_of(stack.pop()):
            if issubclass(type(one), tuple | frozenset):
                stack.append(one)
            elif type(one) in _REACHED:
                yield one
