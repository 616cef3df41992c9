"""Detects changed dicts by the version that Python 3.11 stores in each."""

import gc
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter, is_
from types import MappingProxyType
from typing import Any

from calque.state.rows import ClassRow, DictRow, NamedRow, Row
from calque.upstream import torch_c

version_of: Callable[[dict[Any, Any]], int] | None = None
"""Returns the version of a dict, which is new after each change; None if Python has no versions."""

if sys.version_info < (3, 12):
    version_of = torch_c.dict_version

own_dict: Callable[[Any], Any] = attrgetter("__dict__")

_DICTS = (dict, defaultdict)  # an OrderedDict's order may change without its version


def has_version(row: Row) -> bool:
    """Returns True if every change of a row's container changes a version."""
    if version_of is None:
        return False
    if type(row) is DictRow:
        return type(row.owner) in _DICTS
    # A loop at the top level of the user's module changes its namespace in every iteration.
    looked_up = type(row) is NamedRow and row.path.foreign
    return (looked_up or type(row) is ClassRow) and type(_dict_of(row)) is dict


def _dict_of(row: Row) -> Any:
    """Returns the dict itself, even for a class, whose dict Python exposes through a proxy."""
    owner = row.owner
    return gc.get_referents(owner)[0] if type(owner) is MappingProxyType else owner


class Versions:
    """Guards that dicts hold the same objects, reading only those that were changed.

    Args:
        rows: rows of dicts (see `has_version`), with the expected contents in their `before`.
        free: keys of rows that may hold anything.
        owners: objects whose own dicts (`vars(owner)`) the rows are of, each of which has a row. It
            is then compared, too, that they have these dicts, because no two dicts ever have the
            same version. If None, the dicts do not depend on other objects.

    Attributes:
        dicts: the distinct dicts, or the dict of each owner.
        owners: the owners of the dicts; None if there are none.
        seen: the versions of the dicts when they last held these objects.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        free: Mapping[Row, Collection[Any]],
        owners: Sequence[Any] | None = None,
    ) -> None:
        self._free = free
        dicts: list[Any] = list(map(_dict_of, rows))
        self._rows: dict[int, list[Row]] = defaultdict(list)  # by the id of the dict
        for row, held in zip(rows, dicts, strict=True):
            self._rows[id(held)].append(row)
        self.owners: list[Any] | None = None if owners is None else list(owners)
        distinct = {id(held): held for held in dicts}
        self.dicts: list[Any] = list(distinct.values())
        if self.owners is not None:
            self.dicts = list(map(own_dict, self.owners))
        self.seen: list[int] = [-1] * len(self.dicts)

    def hold(self) -> bool:
        """Returns True if every dict has its original contents."""
        assert version_of is not None
        found = self.dicts if self.owners is None else list(map(own_dict, self.owners))
        now = list(map(version_of, found))
        if now == self.seen:
            return True
        if not all(map(is_, found, self.dicts)):
            return False
        for held, version, before in zip(found, now, self.seen, strict=True):
            if version != before and not all(map(self._holds, self._rows[id(held)])):
                return False
        self.seen = now  # read before the dicts, so that changes by other threads are detected
        return True

    def _holds(self, row: Row) -> bool:
        free = {*row.ignored, *self._free.get(row, ())}
        now, before = row.owner if type(row) is DictRow else row.items(), row.before
        if row.ordered:
            if len(now) != len(before) or not all(map(_same_key, now, before)):
                return False
        elif (now.keys() ^ before.keys()) - free:
            return False
        if not free and row.ordered:
            return all(map(is_, now.values(), before.values()))
        return all(now[key] is value for key, value in before.items() if key not in free)


def _same_key(now: object, before: object) -> bool:
    return now is before or (type(now) is str and type(before) is str and now == before)
