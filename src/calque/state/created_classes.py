"""Classes that a function creates: each call creates its own.

A class is created bare, and filled when it exists, because its methods may close over it.
"""

import types
from collections import namedtuple
from collections.abc import Collection
from typing import Any

from calque.state.plain import is_local
from calque.state.values import ATOMIC, is_of_values

METHODS = (property, classmethod, staticmethod)
_OF_PYTHON = frozenset(("__dict__", "__weakref__"))
_UNCHECKED = _OF_PYTHON.union(("__orig_bases__", "__parameters__"))
_NAMED = ("__module__", "__doc__", "__slots__")
_WITHOUT_COPY = "__init_subclass__"
_OF_NAMED_TUPLES = type(vars(namedtuple("Field", "name"))["name"])


def is_created_again(kind: Any, known: Collection[int]) -> bool:
    """Returns True if each call can create a class again, and its attributes may change.

    Args:
        known: the ids of the objects that existed before.
    """
    if type(kind) is not type or id(kind) in known or not is_local(kind):
        return False
    if any(_WITHOUT_COPY in vars(one) for one in kind.__mro__[:-1]):
        return False
    return all(_is_of_class(v) for k, v in vars(kind).items() if k not in _UNCHECKED)


def class_created_from(kind: type) -> tuple[Any, ...]:
    """Returns how to create a class again, in the form of `object.__reduce__`."""
    names = {name: vars(kind)[name] for name in _NAMED if name in vars(kind)}
    names["__qualname__"] = kind.__qualname__
    content = {
        k: v
        for k, v in vars(kind).items()
        if k not in _OF_PYTHON and k not in names and type(v) is not types.MemberDescriptorType
    }
    return type, (kind.__name__, kind.__bases__, names), content, None, None, _fill_class


def method_created_from(value: Any) -> tuple[Any, ...]:
    """Like `class_created_from`, for a property, a class method or a static method."""
    if isinstance(value, property):
        return property, (value.fget, value.fset, value.fdel, value.__doc__)
    return type(value), (value.__func__,)


def _fill_class(kind: type, content: dict[str, Any]) -> None:
    for name, value in content.items():
        type.__setattr__(kind, name, value)


def is_of_data_classes(value: object) -> bool:
    """Returns True for what describes the fields of data classes, which does not change."""
    return type(value).__module__ == "dataclasses"


def _is_of_class(value: object) -> bool:
    """Returns True for what a class statement usually makes."""
    if type(value) is dict:  # annotations, and the fields of data classes and named tuples
        return all(type(key) is str for key in value)
    kinds = (types.FunctionType, types.MemberDescriptorType, _OF_NAMED_TUPLES, *METHODS)
    return (
        type(value) in kinds
        or type(value) in ATOMIC
        or is_of_values(value)
        or is_of_data_classes(value)
    )
