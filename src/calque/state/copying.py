"""Which numbers of a trace's state are only copied into lists to which code appends."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection
from types import CodeType
from typing import Any

from calque.state.copied import Receiver, copies_of
from calque.state.grown import Grown
from calque.state.named import Named, Place, is_special, variable_of
from calque.state.rows import CellRow, DictRow, NamedRow, Row

_LISTS = (list, deque)
_DICTS = (dict, defaultdict, OrderedDict)
_TAKING = frozenset(
    (
        *("append", "extend", "appendleft", "extendleft", "__iadd__"),
        *("__getattr__", "__getattribute__"),
    )
)
"""Names of functions that would receive what code appends, or choose what receives it."""


class Copying:
    """Finds the numbers of the state that code increments and otherwise only copies into what it
    appends.

    Args:
        named: the knowledge about names.
        rows: all rows.
        is_reached: returns True for a dict or an object without methods of which code reads only
            items with constant keys, or single attributes.
    """

    def __init__(
        self, named: Named, rows: Collection[Row], is_reached: Callable[[object], bool]
    ) -> None:
        self._named = named
        self._rows = rows
        self._is_reached = is_reached
        self._into: defaultdict[str, set[Receiver]] = defaultdict(set)
        self._read: set[str] = {*named.words, *named.computed}
        self._read.update(key for _, key in named.assigned if isinstance(key, str))
        self._keys: set[str] = set(self._read)
        for code in named.codes:
            found = copies_of(code, named.replaced)
            self._read |= found.reads.values
            self._keys |= found.reads.keys
            for name, receivers in found.names.items():
                self._into[name] |= receivers
        self._by_name = set(named.rows)
        self._objects = dict(named.objects)

    def may_be(self, row: Row, key: Any) -> bool:
        """Returns True if no code reads a number, apart from appending it to something."""
        name = variable_of(row) if type(row) is CellRow else key
        if not isinstance(name, str) or is_special(name) or name not in self._into:
            return False
        if row in self._by_name:
            return name not in self._read
        if row in self._objects:
            reached = self._objects[row]
            return name not in self._read and self._named.dicts and self._is_reached(reached)
        if type(row) is not DictRow or row.attribute or row.path.foreign:
            return False
        return name not in self._keys and self._named.dicts and self._is_reached(row.owner)

    def refused(self, places: Collection[Place], grown: Callable[[], Grown]) -> set[Place]:
        """Returns those of some numbers that code may also read, or append to something that is
        no list.
        """
        found = {place for place in places if not self.may_be(*place)}
        if found == set(places):
            return found
        if self._named.reached or any(map(_takes, self._named.codes)):
            return set(places)
        if self._named.searched:
            found |= {place for place in places if not _is_of_variables(place[0])}
        lists = Lists(grown(), self._rows)
        for row, key in set(places) - found:
            name = str(variable_of(row) if type(row) is CellRow else key)
            if not all(lists.are_in(*receiver) for receiver in self._into[name]):
                found.add((row, key))
        return found


class Lists:
    """Finds the names that hold nothing but lists to which code only appends.

    Args:
        grown: finds such lists.
        rows: all rows.
    """

    def __init__(self, grown: Grown, rows: Collection[Row]) -> None:
        self._grown = grown
        self._rows = [row for row in rows if not row.path.foreign]

    def are_in(self, name: str, depth: int) -> bool:
        """Returns True if everything under a name is such a list, or at some depth in it."""
        if not self._grown.only_appends_through(name):
            return False
        found = [row.before[None] for row in self._rows if _is_variable(row, name)]
        found += [row.before[name] for row in self._rows if name in row.before]
        return all(self._is_list(value, depth) for value in found)

    def _is_list(self, value: Any, depth: int) -> bool:
        if depth == 0:
            return type(value) in _LISTS and self._grown.ways_into(value) is not None
        if type(value) not in _DICTS:
            return type(value) is list and all(self._is_list(one, depth - 1) for one in value)
        if type(value) is defaultdict and value.default_factory not in (None, *_LISTS):
            return False
        return all(self._is_list(one, depth - 1) for one in value.values())


def _takes(code: CodeType) -> bool:
    return code.co_name in _TAKING


def _is_variable(row: Row, name: str) -> bool:
    return type(row) is CellRow and bool(row.before) and variable_of(row) == name


def _is_of_variables(row: Row) -> bool:
    """Returns True if a row holds variables of modules or functions, in which code does not
    search.
    """
    return type(row) is CellRow or (type(row) is NamedRow and "__builtins__" in row.owner)
