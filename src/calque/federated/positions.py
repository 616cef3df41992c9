"""The positions of builtin iterators and generators.

A function that takes items from an outer iterator changes what its next call gets.
"""

import warnings
from collections.abc import Iterator
from types import GeneratorType
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, range, type(None))
_MODULES = ("builtins", "itertools")
_DEEPEST = 8


def is_iterator(value: object) -> bool:
    """Returns True for a generator or a builtin iterator."""
    return isinstance(value, Iterator) and type(value).__module__ in _MODULES


def position_of(iterator: object, depth: int = 0) -> Any:
    """Returns a value that changes when an item is taken from an iterator.

    >>> numbers = iter([1, 2, 3])
    >>> before = position_of(numbers)
    >>> next(numbers)
    1
    >>> before == position_of(numbers)
    False
    """
    if isinstance(iterator, GeneratorType):
        return _of_generator(iterator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pickling itertools is deprecated
        try:
            parts = iterator.__reduce__()
        except TypeError:
            parts = ()
    return repr(iterator), _plain(parts, depth)


def _of_generator(generator: Any) -> Any:
    frame = generator.gi_frame
    if frame is None:
        return None
    held = {name: value for name, value in frame.f_locals.items() if type(value) in _PLAIN}
    inner = [position_of(value) for value in frame.f_locals.values() if _is_plain_iterator(value)]
    return frame.f_lasti, repr(held), inner


def _is_plain_iterator(value: object) -> bool:
    return is_iterator(value) and not isinstance(value, GeneratorType)


def _plain(value: object, depth: int) -> Any:
    """Returns a part of an iterator's state in comparable form."""
    if type(value) in _PLAIN:
        return repr(value)  # so that nan equals nan
    if type(value) is tuple and depth < _DEEPEST:
        return tuple(_plain(part, depth + 1) for part in value)
    if is_iterator(value) and depth < _DEEPEST:
        return position_of(value, depth + 1)
    return type(value)
