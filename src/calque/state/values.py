"""Defines which values are compared by value; all others are compared by identity."""

import functools
import operator
import types
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from calque.state.contents import elements_of
from calque.state.ownership import Owner, owner_of_class

SCALARS = (bool, int, float, complex, str, bytes, type(None))
_SCALARS = frozenset(SCALARS)


class _Missing:
    """The value of a missing name."""

    def __repr__(self) -> str:
        return "<missing>"

    def __reduce__(self) -> str:
        return "MISSING"


MISSING = _Missing()
"""The value of a name without a value."""

ATOMIC = frozenset(
    (
        *SCALARS,
        type(Ellipsis),
        type(NotImplemented),
        range,
        slice,
        types.CodeType,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
        _Missing,
    )
)
"""Types whose objects never change and contain nothing that does."""

_TUPLES = frozenset((tuple, torch.Size, frozenset))
_WITHOUT_CONTENT = (object, types.SimpleNamespace)
_MADE_BY_PYTHON = 1 << 9
"""The flag of classes created by a class statement (`Py_TPFLAGS_HEAPTYPE`)."""
_EQUAL = frozenset((torch.dtype, torch.device, range, slice))


def same_value(a: Any, b: Any) -> bool:
    """Returns True if two values are the same object, or equal immutable values.

    >>> same_value(1, 1.0), same_value(0.0, -0.0), same_value((1, "a"), (1, "a"))
    (False, False, True)
    """
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b):
        return False
    if kind is bytes or kind is str:
        return bool(a == b)
    if kind in _SCALARS:
        return repr(a) == repr(b)  # distinguishes -0.0 from 0.0, and treats nan as equal to nan
    if kind in _EQUAL:
        return bool(a == b)
    # Not `isinstance`, which asks the target of a `weakref.proxy`, even if it has gone.
    if kind in _TUPLES or (issubclass(kind, tuple) and instance_dict(a) is None):
        a, b = elements_of(a), elements_of(b)
        return len(a) == len(b) and all(map(same_value, a, b))
    if issubclass(kind, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if kind is types.MethodType:
        return a.__self__ is b.__self__ and a.__func__ is b.__func__
    return False


def is_of_values(value: object) -> bool:
    """Returns True for a tuple of immutable values, which programs do not tell from an equal one.

    >>> is_of_values((1, ("a", 2.0))), is_of_values((1, []))
    (True, False)
    """
    if type(value) not in _TUPLES:
        return False
    return all(type(one) in ATOMIC or is_of_values(one) for one in elements_of(value))


def same_contents(a: dict[Any, Any], b: dict[Any, Any]) -> bool:
    """Returns True if two dicts hold the same objects under equal keys, in the same order."""
    return same_keys(a, b) and all(b[key] is value for key, value in a.items())


def same_objects(a: dict[Any, Any], b: dict[Any, Any]) -> bool:
    """Returns True if two dicts hold identical keys and values in the same order.

    This is a quick check in C, which usually succeeds; False does not yet mean a difference.
    """
    return (
        len(a) == len(b)
        and all(map(operator.is_, a, b))
        and all(map(operator.is_, a.values(), b.values()))
    )


def is_same_key(key: Any, other: Any) -> bool:
    """Returns True if a dict takes the keys for one; two tensors may not be compared by `==`."""
    return key is other or other in {key}


def same_keys(a: Iterable[Any], b: Iterable[Any]) -> bool:
    """Returns True if keys are the same in the same order; 1 and True are different keys."""
    a, b = list(a), list(b)
    return len(a) == len(b) and all(x is y or same_value(x, y) for x, y in zip(a, b))


def instance_dict(value: object) -> dict[str, Any] | None:
    """Returns the dict of an object's own attributes; None if it has none.

    `__dict__` may return another object's dict: a method's is its function's.
    """
    try:
        held = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return None
    return held if isinstance(held, dict) else None


@functools.lru_cache(maxsize=4096)
def holds_more_than_attributes(kind: type) -> bool:
    """Returns True if objects of a class have contents other than a dict and slots.

    >>> class Path(str): ...
    >>> holds_more_than_attributes(Path), holds_more_than_attributes(type("Plain", (), {}))
    (True, False)
    """
    for base in kind.__mro__:
        if base in _WITHOUT_CONTENT:
            continue
        if not base.__flags__ & _MADE_BY_PYTHON:
            return True
        slots = any(isinstance(v, types.MemberDescriptorType) for v in vars(base).values())
        if slots and owner_of_class(base) is not Owner.USER:
            return True
    return False


def is_of_objects(value: Any) -> bool:
    """Returns True for an array of NumPy that holds objects."""
    return type(value) is np.ndarray and value.dtype.hasobject


def described(value: object) -> str:
    """Returns the text of a value for messages."""
    return "not there" if value is MISSING else repr(value)
