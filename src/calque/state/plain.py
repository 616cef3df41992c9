"""Plain objects, which consist only of a Python class, attributes and items.

They are recreated and copied from their contents without calling their methods, such as a `__new__`
with arguments or a `__getstate__` that omits something.
"""

import argparse
import contextlib
import copy
import enum
import functools
import types
import weakref
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, deque
from collections.abc import Container
from typing import Any

from torch import nn
from torch.optim import Optimizer

from calque.state.ownership import Owner, owner_of_class
from calque.state.rows import is_made_in_python, slots_of
from calque.state.values import instance_dict

OF_PYTHON = (types.SimpleNamespace, argparse.Namespace, UserDict, UserList, Counter, ChainMap)
"""Classes of Python's library whose objects also count as plain."""
_BASES = (object, dict, OrderedDict, list, types.SimpleNamespace)
_OTHERWISE = (nn.Module, Optimizer, enum.Enum)
"""Objects that PyTorch's engine or Python copies in its own way."""

_CHANGING = (list, dict, set, deque, bytearray)


@functools.lru_cache(maxsize=4096)
def base_of(kind: type) -> Any:
    """Returns the builtin class that creates objects of a class; None if its own C code has to, or
    if their end is noticed.
    """
    if isinstance(getattr(kind, "__del__", None), types.FunctionType):
        return None
    if not all(base in _BASES or is_made_in_python(base) for base in kind.__mro__):
        return None
    for base in _BASES:
        try:
            base.__new__(kind)
        except TypeError:
            continue
        return base
    return None


def bare(kind: type) -> Any:
    """Creates an object of a class, without attributes."""
    if kind in (dict, list):
        return kind()
    base = base_of(kind)
    assert base is not None
    return base.__new__(kind)


@functools.lru_cache(maxsize=4096)
def is_plain(kind: type) -> bool:
    """Returns True if objects of a user's class are plain."""
    if owner_of_class(kind) is not Owner.USER or issubclass(kind, _OTHERWISE):
        return False
    return base_of(kind) is not None


def content_of(value: object) -> Any:
    """Returns the contents of a plain object: its items, attributes and slots."""
    items: Any = None
    if isinstance(value, dict):
        items = list(dict.items(value))
    elif isinstance(value, list):
        items = list(list.__iter__(value))
    slots: dict[str, Any] = {}
    for name, read in slots_of(type(value)).items():
        with contextlib.suppress(AttributeError):  # the slot is empty
            slots[name] = read(value)
    return items, instance_dict(value), slots


def fill(value: object, content: Any) -> None:
    """Fill a bare object with the contents of another object."""
    items, held, slots = content
    if isinstance(value, dict):
        put: Any = OrderedDict.__setitem__ if isinstance(value, OrderedDict) else dict.__setitem__
        for key, item in items:
            put(value, key, item)
    elif isinstance(value, list):
        list.extend(value, items)
    if held:
        object.__getattribute__(value, "__dict__").update(held)
    for name, item in slots.items():
        object.__setattr__(value, name, item)


def copied(value: object) -> Any:
    """Returns a shallow copy of an object, without calling methods of plain objects."""
    if not is_plain(type(value)):
        return copy.copy(value)
    new = bare(type(value))
    fill(new, content_of(value))
    return new


def tells_its_end(value: Any) -> bool:
    """Returns True if code runs when an object dies, or something waits for that: a copy of the
    object cannot take its place.
    """
    if isinstance(getattr(type(value), "__del__", None), types.FunctionType):
        return True
    if isinstance(value, _OTHERWISE):  # calque itself refers to those weakly
        return False
    try:
        return weakref.getweakrefcount(value) > 0
    except TypeError:
        return False


def closes_over_new(value: Any, known: Container[int]) -> bool:
    """Returns True if a function that is not known closes over an object that may change and is
    not known either.

    Args:
        known: the ids of the objects that existed before.
    """
    rest, seen = [value], set()
    while rest:
        function = rest.pop()
        if type(function) is not types.FunctionType or id(function) in known or function in seen:
            continue
        seen.add(function)
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # the variable is unbound
                held = cell.cell_contents
                rest.append(held)
                changes = isinstance(held, _CHANGING) or is_plain(type(held))
                if changes and id(held) not in known:
                    return True
    return False
