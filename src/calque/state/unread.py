"""Numbers and strings that a program keeps on its modules, and that no traced code reads."""

import functools
from collections.abc import Collection, Mapping
from types import CodeType
from typing import Any

from torch.nn import Module

from calque.state.matters import functions_of
from calque.state.names import names_of
from calque.state.rows import Row
from calque.state.values import ATOMIC, MISSING
from calque.state.whose import Owner, owner_of_class

_TEXT = ("__repr__", "extra_repr")
"""Methods that fill attributes into a format, which names them."""


class Unread:
    """Attributes of modules which calls need not compare, because no code names them.

    A trace finds all attributes of a module, and puts them back. But a loop may count in one
    (`model.global_step += 1`): if the traced code does not name it, any value is as good.

    Args:
        rows: the attributes of modules of the user's classes.
        names: the names that code contains, the user's and that of PyTorch's modules.
    """

    def __init__(self, rows: Collection[Row], names: Collection[str]) -> None:
        self._rows = rows
        self._names = names

    def among(self, rows: Mapping[Row, Row]) -> "Unread":
        """The same attributes, of the rows that took the place of these."""
        return Unread([rows.get(row, row) for row in self._rows], self._names)

    def ignore(self) -> bool:
        """Let the rows ignore those that have changed; returns True if there were any."""
        changed = [self._ignore(row) for row in self._rows]
        return any(changed)

    def _ignore(self, row: Row) -> bool:
        now, before = row.items(), row.before
        changed = {key for key in {**before, **now} if self._has_changed(row, key, now)}
        if not changed:
            return False
        row.ignored = changed.union(row.ignored)
        others = {k: v for k, v in before.items() if k in now or k not in row.ignored}
        row.before = {k: others.pop(k, v) for k, v in now.items() if k in others or k in changed}
        row.before.update(others)
        return True

    def _has_changed(self, row: Row, key: Any, now: dict[Any, Any]) -> bool:
        before, after = row.before.get(key, MISSING), now.get(key, MISSING)
        if key in row.ignored:
            return (before is MISSING) is not (after is MISSING)
        if before is after or key in self._names:
            return False
        return type(before) in ATOMIC and type(after) in ATOMIC


@functools.lru_cache(maxsize=4096)
def words_of_class(kind: type) -> frozenset[str] | None:
    """The names that the methods of a library's class contain.

    None if it looks at attributes whose names they do not contain.
    """
    found: set[str] = set()
    for base in kind.__mro__:
        if base is object or owner_of_class(base) is Owner.USER:
            continue
        for function in (f for value in vars(base).values() for f in functions_of(value)):
            for names in map(names_of, _codes_in(function.__code__)):
                found |= names.words
                if names.whole and base is not Module and function.__name__ not in _TEXT:
                    return None
    return frozenset(found)


def _codes_in(code: CodeType) -> list[CodeType]:
    return [code, *(inner for one in names_of(code).nested for inner in _codes_in(one))]
