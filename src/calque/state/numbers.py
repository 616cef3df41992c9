"""Numbers that may change between calls: those of Python and NumPy, alone or in tuples."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from calque.state.contents import elements_of
from calque.state.values import ATOMIC, instance_dict, same_value

WHOLE: frozenset[type[Any]] = frozenset((int, np.int32, np.int64))
NUMBERS: frozenset[type[Any]] = WHOLE | {float, np.float32, np.float64}
"""The classes of numbers; not those of their subclasses' objects."""
_MOST = 8
"""The number of items of a tuple above which numbers in it are always compared."""


def is_number(value: object) -> bool:
    """Returns True for a number, and for a tuple of plain values some of which are numbers.

    >>> is_number(1.0), is_number((0.9, (0.99, "a"))), is_number(True), is_number(("a", None))
    (True, True, False, False)
    """
    if type(value) in NUMBERS:
        return True
    return _is_tuple(value) and _is_plain(value) and any(True for _ in numbers_in(value))


def numbers_in(value: Any) -> Iterator[Any]:
    """Yields the numbers in a value for which `is_number` is True."""
    if type(value) in NUMBERS:
        yield value
    elif _is_tuple(value):
        for one in elements_of(value):
            yield from numbers_in(one)


def are_numbers(before: Any, now: Any) -> bool:
    """Returns True for values that differ by numbers at most, for which `is_number` is True.

    >>> are_numbers((1, "a"), (2, "a")), are_numbers((1, "a"), (2, "b")), are_numbers(1, 1.0)
    (True, False, False)
    """
    return is_number(before) and _are_alike(before, now)


def have_other_numbers(before: Any, now: Any) -> bool:
    """Returns True for values of one class with different numbers, for which `is_number` is True.

    >>> have_other_numbers((1, "a"), (2, "b")), have_other_numbers((1, "a"), (1, "b"))
    (True, False)
    """
    if type(before) is not type(now) or not is_number(now):
        return False
    return not same_value(tuple(numbers_in(before)), tuple(numbers_in(now)))


def _are_alike(before: Any, now: Any) -> bool:
    if type(before) is not type(now):
        return False
    if type(before) in NUMBERS:
        return True
    if not _is_tuple(before):
        return same_value(before, now)
    items, others = elements_of(before), elements_of(now)
    return len(items) == len(others) and all(map(_are_alike, items, others))


def with_numbers(value: Any, change: Callable[[Any], Any]) -> Any:
    """Returns a value with other items in the places of those that are no tuples.

    >>> with_numbers((1, (2, "a")), lambda one: one * 2)
    (2, (4, 'aa'))
    """
    if not _is_tuple(value):
        return change(value)
    return tuple.__new__(type(value), [with_numbers(one, change) for one in elements_of(value)])


def tuples_in(value: Any) -> Iterator[Any]:
    """Yields the tuples in a value, and itself if it is one."""
    if _is_tuple(value):
        yield value
        for one in elements_of(value):
            yield from tuples_in(one)


def _is_tuple(value: Any) -> bool:
    """Returns True for a tuple, or a named tuple, with no other attributes."""
    return _is_tuple_class(type(value)) and instance_dict(value) is None


@functools.lru_cache(maxsize=1024)
def _is_tuple_class(kind: type) -> bool:
    named = issubclass(kind, tuple) and any("_fields" in vars(base) for base in kind.__mro__)
    return kind is tuple or named


def _is_plain(value: Any) -> bool:
    items = elements_of(value)
    return len(items) <= _MOST and all(
        type(one) in NUMBERS or type(one) in ATOMIC or (_is_tuple(one) and _is_plain(one))
        for one in items
    )
