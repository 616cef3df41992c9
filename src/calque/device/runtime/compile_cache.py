"""Keeps a bounded number of the programs compiled for eager calls.

Each new shape of an operator needs a compiled program of about half a megabyte. All tables together
hold a bounded number. When it is exceeded, a quarter is removed, first those that were not used
since the last removal, oldest first. The newest could not have been used yet, and count as used.
"""

import functools
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

logger: logging.Logger = logging.getLogger("calque.kept")

P = ParamSpec("P")
R = TypeVar("R")
DEFAULT = 1024
_NEWEST = 16  # one of so many is among the newest, fewer than are removed at once
_REMEMBERED = 65536  # keys of removed programs, to notice when they are compiled again


class Entry:
    """One entry of a table.

    Attributes:
        value: the cached value.
        used: whether it was used since the last removal.
    """

    __slots__ = ("_key", "_serial", "_table", "used", "value")

    def __init__(self, value: Any, table: "Table", key: Any, serial: int) -> None:
        self.value: Any = value
        self.used: bool = False
        self._table, self._key, self._serial = table, key, serial

    def drop(self) -> None:
        """Remove it from its table."""
        if self._table.pop(self._key, None) is not None:
            _kept.gone.add(self._table.mark(self._key))


class Table(dict[Any, Entry]):
    """The programs of one owner, by key."""

    def __init__(self) -> None:
        super().__init__()
        _kept.tables.append(weakref.ref(self))

    def keep(self, key: Any, value: Any) -> Entry:
        """Add a value, which may evict others from any table."""
        entry = self[key] = _kept.entry(value, self, key)
        return entry

    def mark(self, key: object) -> int:
        """Returns a number that identifies a key among the keys of all tables."""
        return hash((id(self), key))


class _Kept:
    """The tables, and the limit on their total size."""

    def __init__(self) -> None:
        self.tables: list[weakref.ref[Table]] = []
        self.most = DEFAULT
        self.gone: set[int] = set()
        self._count = self._serial = self._again = 0
        self._lock = threading.Lock()

    def entry(self, value: object, table: Table, key: object) -> Entry:
        with self._lock:
            self._serial += 1
            if self._count >= self.most:
                self._sweep(self.most)
            self._count += 1
            if self.gone and table.mark(key) in self.gone:
                self._again += 1
                if self._again == self.most:
                    logger.warning(
                        "eager calls need more than %d programs in turn, so XLA compiles them "
                        "again and again: raise the limit with torch.jax.set_max_programs, or "
                        "jit the function",
                        self.most,
                    )
            return Entry(value, table, key, self._serial)

    def bound(self, most: int) -> None:
        with self._lock:
            self.most, self._again = most, 0
            self._sweep(most)

    def _sweep(self, most: int) -> None:
        tables = [(reference, table) for reference in self.tables if (table := reference())]
        entries = [entry for _, table in tables for entry in list(table.values())]
        if len(entries) >= most:
            if len(self.gone) > _REMEMBERED:
                self.gone.clear()
            newest = self._serial - most // _NEWEST

            def order(entry: Entry) -> tuple[bool, int]:
                return entry.used or entry._serial >= newest, entry._serial

            entries.sort(key=order)
            excess = len(entries) - most * 3 // 4
            for entry in entries[:excess]:
                entry.drop()
            entries = entries[excess:]
            for entry in entries:
                entry.used = False
        self._count = len(entries)
        self.tables = [reference for reference in self.tables if reference() is not None]


_kept = _Kept()


def kept(function: Callable[P, R]) -> Callable[P, R]:
    """Caches the results of a function with hashable arguments, like `functools.lru_cache`."""
    table = Table()

    @functools.wraps(function)
    def remembered(*args: P.args, **kwargs: P.kwargs) -> R:
        entry = table.get(args)
        if entry is None:
            return table.keep(args, function(*args, **kwargs)).value
        entry.used = True
        return entry.value

    return remembered


def set_max_programs(count: int) -> None:
    """Limit the number of compiled programs that eager calls keep, of about half a megabyte each.

    Args:
        count: the limit, at least 1; by default 1024. Roughly, the most recently used programs are
            kept.

    Raises:
        ValueError: it is less than 1.
        TypeError: it is not an integer.

    >>> import torch, calque
    >>> torch.jax.set_max_programs(2048)
    >>> torch.jax.get_max_programs()
    2048
    """
    if not isinstance(count, int):
        raise TypeError(
            f"torch.jax.set_max_programs takes a number of programs, not {type(count).__name__} "
            f"{count!r}"
        )
    if count < 1:
        raise ValueError(f"set_max_programs expects at least 1 program, not {count}")
    _kept.bound(count)


def get_max_programs() -> int:
    """Returns the limit on the number of compiled programs (see `set_max_programs`)."""
    return _kept.most


def count() -> int:
    """Returns the number of compiled programs that are kept."""
    return sum(len(table) for reference in _kept.tables if (table := reference()) is not None)
