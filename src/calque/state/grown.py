"""Lists to which the code that ran only appends."""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from types import CodeType
from typing import Any

from calque.state.growth import Way, growth_of
from calque.state.named import Named, holders_of, is_plain_dict
from calque.state.names import names_of
from calque.state.rows import CellRow, ListRow, NamedRow, Row

_LISTS = (list, deque)
_AT_LEFT = frozenset(("appendleft", "extendleft"))
_REACHING = frozenset(
    (
        *("f_locals", "f_globals", "__globals__", "__closure__", "cell_contents"),
        *("get_objects", "get_referrers", "get_referents"),
    )
)
"""Names through which code reaches objects that it does not name."""
_TAKING_APART = frozenset(
    (
        *("dump", "dumps", "save", "deepcopy", "asdict", "astuple", "getsizeof"),
        *("tree", "tree_flatten", "tree_leaves", "tree_map", "tree_map_", "tree_structure"),
        *("tree_all", "tree_any", "tree_iter", "tree_reduce"),
    )
)
"""Names of functions that read all attributes of an object."""


class Grown:
    """Finds the lists to which code only appends.

    Such a list is held only under names through which the code that ran appends to it, or takes
    another container. Nothing that the code computes depends on the list's length and items.

    Args:
        named: the knowledge about names.
        rows: all rows of a trace.
    """

    def __init__(self, named: Named, rows: Iterable[Row]) -> None:
        self._named = named
        self._others: set[str] = {*named.words, *named.computed}
        self._mixed: set[str] = set(self._others)
        self._ways: defaultdict[str, set[Way]] = defaultdict(set)
        for code in named.codes:
            found = growth_of(code)
            self._others |= found.others
            self._mixed |= found.mixed
            for name, way in found.ways:
                self._ways[name].add(way)
        by_name = {*named.rows, *(row for row, _ in named.objects)}
        self._objects = {id(row): value for row, value in named.objects}
        found = self._ways and not named.reached
        self._holders = holders_of(rows, by_name) if found else {}

    def ways_into(self, value: object) -> Collection[str] | None:
        """Returns the methods by which code appends to a list; None if it may do more with it."""
        if type(value) not in _LISTS:
            return None
        return self._ways_into(value, 0, set())

    def only_appends_through(self, name: str) -> bool:
        """Returns True if code only appends to what a name holds, or to items of it."""
        return bool(self._holders) and name not in self._others and name in self._ways

    def among(self, rows: Iterable[Row]) -> list[ListRow]:
        """Returns the rows of such lists."""
        lists = [row for row in rows if type(row) is ListRow]
        return [row for row in lists if self.ways_into(row.owner) is not None]

    def _ways_into(self, value: object, depth: int, seen: set[int]) -> set[str] | None:
        if id(value) in self._named.unnamed or id(value) not in self._holders or id(value) in seen:
            return None
        found: set[str] = set()
        for row, name in self._holders[id(value)]:
            ways = self._ways_through(row, name, depth, {*seen, id(value)})
            if ways is None:
                return None
            found |= ways
        return found

    def _ways_through(
        self, row: Row, name: str | None, depth: int, seen: set[int]
    ) -> set[str] | None:
        """Returns the methods for what a row holds under a name, or for a part of that."""
        if type(row) is ListRow:
            return self._ways_into(row.owner, depth + 1, seen)
        if is_plain_dict(row):
            whole = self._ways_into(row.owner, depth + 1, seen)
            if whole is not None or not self._is_read_by_keys(row.owner, set()):
                return whole
        if name is None or name in self._others:
            return None
        if self._named.searched and not _is_of_variables(row):
            return None
        if id(row) in self._objects and not self._is_apart(self._objects[id(row)]):
            return None
        if any(inner > depth for _, inner in self._ways[name]):  # takes items of the list
            return None
        return {method for method, inner in self._ways[name] if inner == depth}

    def _is_read_by_keys(self, value: object, seen: set[int]) -> bool:
        """Returns True if code takes only items with constant keys from a dict."""
        if id(value) in self._named.unnamed or id(value) not in self._holders or id(value) in seen:
            return False
        seen.add(id(value))
        for row, name in self._holders[id(value)]:
            if name is None or name in self._mixed:
                return False
            if id(row) in self._objects and not self._is_apart(self._objects[id(row)]):
                return False
            if is_plain_dict(row) and not self._is_read_by_keys(row.owner, seen):
                return False
        return True

    def _is_apart(self, value: object) -> bool:
        """Returns True if code reads only single attributes of an object without methods."""
        if id(value) in self._named.unnamed or id(value) in self._named.given:
            return False
        passed, holders = self._named.passed, self._holders.get(id(value), ())
        return bool(holders) and all(
            n is not None and n not in passed and not is_plain_dict(r) for r, n in holders
        )


def takes_objects_apart(code: CodeType) -> bool:
    """Returns True if code may call a library that reads all attributes of an object."""
    return not _TAKING_APART.isdisjoint(names_of(code).words)


def reaches_variables(code: CodeType) -> bool:
    """Returns True if code may reach objects that it does not name."""
    return not _REACHING.isdisjoint(names_of(code).words)


def _is_of_variables(row: Row) -> bool:
    """Returns True if a row holds variables of modules or functions, in which other code does not
    search.
    """
    return type(row) is CellRow or (type(row) is NamedRow and "__builtins__" in row.owner)


def may_lose_items(row: ListRow) -> bool:
    """Returns True if appending to a list may have changed nothing that can be seen."""
    return isinstance(row.owner, deque) and len(row.before) == row.owner.maxlen


def new_items(
    row: ListRow, now: Collection[Any], ways: Collection[str], hidden: Callable[[], Collection[int]]
) -> list[Any] | None:
    """Returns the items that a trace has appended, in this order; None if that is not certain.

    Args:
        row: the row of a list, with its earlier contents.
        now: its contents.
        ways: the methods by which code appends to it.
        hidden: returns the ids of the items that nothing else holds.
    """
    before, after = list(row.before.values()), list(now)
    at_left = is_at_left(ways)
    if at_left is None or after == []:
        return None
    if at_left:
        before.reverse()
        after.reverse()
    if not before or not isinstance(row.owner, deque) or len(after) != row.owner.maxlen:
        return after[len(before) :] if _begins(after, before) else None
    # A full deque loses its first items. What it keeps, the function cannot have appended again.
    kept = next(before[n:] for n in range(len(before) + 1) if _begins(after, before[n:]))
    alone = hidden() if kept else ()
    return after[len(kept) :] if all(id(one) in alone for one in kept) else None


def _begins(values: list[Any], first: list[Any]) -> bool:
    """Returns True if a list begins with these objects."""
    return len(first) <= len(values) and all(a is b for a, b in zip(values, first))


def is_at_left(ways: Collection[str]) -> bool | None:
    """Returns True if methods append at the left, and None if some do and others do not."""
    found = {way in _AT_LEFT for way in ways}
    return found.pop() if len(found) == 1 else None
