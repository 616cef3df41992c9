"""What only lists hold that no code reads: it is not compared, and not kept alive."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from calque.state.contents import elements_of
from calque.state.rows import DictRow, ListRow, Row
from calque.state.values import ATOMIC, instance_dict

_PLAIN = (tuple, list, dict)


def hidden_items(
    rows: Mapping[Any, Row], lists: Collection[ListRow], known: Collection[int]
) -> dict[int, Any]:
    """Returns the tensors and plain containers that only some lists hold, by id.

    Args:
        rows: all rows.
        lists: the rows of the lists.
        known: the ids of objects that something else holds.
    """
    inner: dict[int, Any] = {}
    stack = [value for row in lists for value in row.before.values()]
    while stack:
        value = stack.pop()
        kind = type(value)
        if id(value) in inner or id(value) in known or kind in ATOMIC:
            continue
        if kind in _PLAIN or (kind is torch.Tensor and not instance_dict(value)):
            inner[id(value)] = value
            stack += _elements(value)
    if not inner:
        return inner
    own = {id(row) for row in lists}
    others = (r for r in rows.values() if id(r) not in own and id(r.owner) not in inner)
    outside = [value for row in others for value in row.before.values()]
    outside += [value for value in inner.values() if _has_objects_as_keys(value)]
    seen: set[int] = set()
    while outside:
        value = outside.pop()
        if id(value) in seen or type(value) in ATOMIC:
            continue
        seen.add(id(value))
        if inner.pop(id(value), None) is not None or type(value) is tuple:
            outside += _elements(value)
    return inner


def _elements(value: Any) -> Iterator[Any]:
    if type(value) is dict:
        yield from value.values()
    elif type(value) in _PLAIN:
        yield from elements_of(value)


def _has_objects_as_keys(value: Any) -> bool:
    """Returns True if a value is a dict with objects among its keys."""
    return type(value) is dict and any(type(key) not in ATOMIC for key in value)


def forget(rows: dict[Any, Row], hidden: Mapping[int, Any]) -> None:
    """Remove the rows of hidden objects."""
    for key, row in list(rows.items()):
        place = key[1] if isinstance(key, tuple) else key
        if place in hidden or (type(row) in (DictRow, ListRow) and id(row.owner) in hidden):
            del rows[key]
