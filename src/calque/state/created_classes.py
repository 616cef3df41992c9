"""Classes that a function creates, with attributes that may change: each call creates its own.

A class is created bare, and filled when it exists, because its methods may close over it.
"""

import types
from collections.abc import Collection
from typing import Any

from calque.state.plain import is_local
from calque.state.values import ATOMIC, is_of_values

METHODS = (property, classmethod, staticmethod)
_OF_PYTHON = frozenset(("__dict__", "__weakref__"))
_NAMED = ("__module__", "__doc__")
_WITHOUT_COPY = frozenset(("__slots__", "__dataclass_fields__", "__init_subclass__"))


def is_created_again(kind: Any, known: Collection[int]) -> bool:
    """Returns True if each call can create a class again, and its attributes may change.

    Args:
        known: the ids of the objects that existed before.
    """
    if type(kind) is not type or id(kind) in known or not is_local(kind):
        return False
    if any(not _WITHOUT_COPY.isdisjoint(vars(one)) for one in kind.__mro__[:-1]):
        return False
    values = {k: v for k, v in vars(kind).items() if not _is_special(k)}
    plain = {k: v for k, v in values.items() if type(v) in ATOMIC or is_of_values(v)}
    rest = (v for k, v in vars(kind).items() if k not in plain and k not in _OF_PYTHON)
    again = plain or any(is_created_again(base, known) for base in kind.__bases__)
    return bool(again) and all(_is_of_class(value) for value in rest)


def class_created_from(kind: type) -> tuple[Any, ...]:
    """Returns how to create a class again, in the form of `object.__reduce__`."""
    names = {name: vars(kind)[name] for name in _NAMED if name in vars(kind)}
    names["__qualname__"] = kind.__qualname__
    content = {k: v for k, v in vars(kind).items() if k not in _OF_PYTHON and k not in names}
    return type, (kind.__name__, kind.__bases__, names), content, None, None, _fill_class


def method_created_from(value: Any) -> tuple[Any, ...]:
    """Like `class_created_from`, for a property, a class method or a static method."""
    if isinstance(value, property):
        return property, (value.fget, value.fset, value.fdel, value.__doc__)
    return type(value), (value.__func__,)


def _fill_class(kind: type, content: dict[str, Any]) -> None:
    for name, value in content.items():
        type.__setattr__(kind, name, value)


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_of_class(value: object) -> bool:
    """Returns True for what a class statement usually makes."""
    if type(value) is dict:  # annotations
        return all(type(k) is str and isinstance(v, str | type) for k, v in value.items())
    return (
        type(value) in (types.FunctionType, *METHODS)
        or type(value) in ATOMIC
        or is_of_values(value)
    )
