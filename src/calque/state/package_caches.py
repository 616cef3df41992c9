"""Where packages may keep tensors: dicts, lists and caches in their variables, classes and objects.

Tensors of a trace that is abandoned have no values, so they must not outlive it there.
"""

import functools
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any

import torch

from calque.state.contents import nested
from calque.state.ownership import Owner, owner_of_class, owner_of_name
from calque.state.paths import Path
from calque.state.rows import CacheRow, DictRow, ListRow, Row
from calque.state.values import MISSING, instance_dict

_MOST_ENTRIES = 1000
_DICTS = (dict, OrderedDict, defaultdict)
_LISTS = (list, deque)


def caches_in(value: object) -> Iterator[Any]:
    """Yields the dicts and lists that a package's variable, or its attributes, hold at any depth,
    and the functions with a cache of `functools.lru_cache`; long ones are left out.
    """
    stack, seen = [value, *_attributes(value)], set[int]()
    while stack and len(seen) < _MOST_ENTRIES:
        one = stack.pop()
        if id(one) in seen:
            continue
        if isinstance(one, functools._lru_cache_wrapper):
            if one.cache_info().currsize < _MOST_ENTRIES:
                yield one
        elif type(one) in (*_DICTS, *_LISTS, tuple) and len(one) < _MOST_ENTRIES:  # type: ignore[arg-type]
            seen.add(id(one))
            held: Any = one
            stack += dict.values(held) if type(one) in _DICTS else held
            if type(one) is not tuple:
                yield one


def _attributes(value: object) -> list[Any]:
    if isinstance(value, type):
        if owner_of_name(value.__module__) is Owner.PACKAGE:
            return list(vars(value).values())
    elif owner_of_class(type(value)) is Owner.PACKAGE:
        spaces = (vars(type(value)), instance_dict(value) or {})
        return [one for space in spaces for one in list(space.values())]
    return []


def row_of_cache(cache: Any, path: Path) -> Row:
    """Returns a row that no call compares."""
    if isinstance(cache, functools._lru_cache_wrapper):
        row: Row = CacheRow(cache, path)
    else:
        row = DictRow(cache, path) if type(cache) in _DICTS else ListRow(cache, path)
    row.guarded = False
    return row


def holds_new_tensors(row: Row, now: dict[Any, Any]) -> bool:
    """Returns True if tensors of the device were stored in a container since its row was made."""
    new = (value for key, value in now.items() if value is not row.before.get(key, MISSING))
    return any(_is_on_device(one) for value in new for one in nested(value))


def _is_on_device(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "jax"
