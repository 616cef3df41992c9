"""Reads the contents of containers with the methods of their base classes.

A subclass's methods may raise, load lazily, or count their calls.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

_KINDS = (list, tuple, set, frozenset, deque)


def kind_of(container: object) -> Any:
    """Returns the builtin class of a list, tuple, set, frozenset or deque."""
    return next(kind for kind in _KINDS if isinstance(container, kind))


def elements_of(container: object) -> list[Any]:
    """Returns the elements of a list, tuple, set, frozenset or deque."""
    return list(kind_of(container).__iter__(container))


def items_of(container: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Returns the items of a dict."""
    ordered = isinstance(container, OrderedDict)
    return list(OrderedDict.items(container) if ordered else dict.items(container))


def nested(value: object) -> Iterator[Any]:
    """Yields a value, and what its dicts, lists and tuples contain as values, each of them once.

    >>> sum(one == 1 for one in nested([1, {"a": (1, 2)}]))
    2
    """
    rest, seen = [value], set[int]()
    while rest:
        one = rest.pop()
        yield one
        if isinstance(one, dict | list | tuple) and id(one) not in seen:
            seen.add(id(one))
            if isinstance(one, dict):
                rest += dict.values(one)
            else:
                rest += (list if isinstance(one, list) else tuple).__iter__(one)
