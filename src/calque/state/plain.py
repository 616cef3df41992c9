"""Plain objects, which consist only of a Python class, attributes and items.

They are recreated and copied from their contents without calling their methods, such as a `__new__`
with arguments or a `__getstate__` that omits something.
"""

import argparse
import contextlib
import copy
import enum
import functools
import sys
import types
import weakref
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, deque
from collections.abc import Container
from typing import Any

from torch import nn
from torch.optim import Optimizer

from calque.state.ownership import Owner, home_of_class, owner_of_class, owner_of_code
from calque.state.rows import is_made_in_python, slots_of
from calque.state.values import instance_dict

OF_PYTHON = (types.SimpleNamespace, argparse.Namespace, UserDict, UserList, Counter, ChainMap)
OF_PYTHON += (OrderedDict,)
"""Classes of Python's library whose objects also count as plain."""
_BASES = (object, dict, OrderedDict, list, types.SimpleNamespace)
_OTHERWISE = (nn.Module, Optimizer, enum.Enum)
"""Objects that PyTorch's engine or Python copies in its own way."""

_WRAPPING = frozenset(("dataclasses", "reprlib"))
"""Modules that make the `__repr__` of data classes."""
_REDUCING = ("__reduce__", "__reduce_ex__")
"""Methods by which a package says how its objects are copied."""
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
    """Returns True if objects of a class of the user or of a package are plain."""
    owner = owner_of_class(kind)
    if owner < Owner.PACKAGE or issubclass(kind, _OTHERWISE):
        return False
    if owner is Owner.PACKAGE and any(
        getattr(kind, name) is not getattr(object, name) for name in _REDUCING
    ):
        return False
    return base_of(kind) is not None


def has_attributes(value: object) -> bool:
    """Returns True for a container with attributes, such as the result of `state_dict()`, which
    would be rebuilt without them.
    """
    return type(value) is OrderedDict and bool(vars(value))


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


def fill_anew(value: object, content: Any) -> None:
    """Fill a bare object with contents that become its own: it gets the dict of its attributes
    itself, which others may hold as well.
    """
    items, held, slots = content
    fill(value, (items, None, slots))
    if held is not None:
        object.__setattr__(value, "__dict__", held)


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


def is_local(value: object) -> bool:
    """Returns True for a function that the user's code has made in a function, or a class of the
    user's that its module does not have.
    """
    if type(value) is types.FunctionType:
        code, home = value.__code__, value.__globals__.get("__name__")
        is_users = owner_of_code(code) is Owner.USER or home in _WRAPPING
        return "<locals>" in code.co_qualname and is_users
    if not isinstance(value, type):
        return False
    is_users = owner_of_class(value) is Owner.USER or home_of_class(value) == types.__name__
    return is_users and not _is_importable(value)


def _is_importable(kind: type) -> bool:
    found: Any = sys.modules.get(home_of_class(kind))
    for name in kind.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return found is kind


def is_method(value: types.BuiltinFunctionType) -> bool:
    """Returns True if a builtin function is a method of an object (`items.append`)."""
    owner = value.__self__
    return owner is not None and not isinstance(owner, types.ModuleType | type)


def parts_of(function: types.FunctionType) -> list[Any]:
    """Returns what a function holds, without its code and the variables of its module."""
    held = function.__closure__, function.__defaults__, function.__kwdefaults__, function.__dict__
    return [part for part in held if part is not None]


def bare_function(code: types.CodeType, variables: dict[str, Any], cells: Any) -> Any:
    """Returns a function over cells, without defaults and attributes."""
    return types.FunctionType(code, variables, None, None, cells)


_ATTRIBUTES = (
    *("__name__", "__qualname__", "__module__", "__doc__"),
    *("__defaults__", "__kwdefaults__", "__annotations__", "__dict__"),
)


def content_of_function(function: types.FunctionType) -> dict[str, Any]:
    """Returns what `fill_function` gives to a bare function."""
    return {name: getattr(function, name) for name in _ATTRIBUTES}


def fill_function(function: types.FunctionType, content: dict[str, Any]) -> None:
    """Fill a bare function with the contents of another one."""
    for name, value in content.items():
        setattr(function, name, value)


def fill_cell(cell: types.CellType, content: tuple[Any, ...]) -> None:
    """Fill the empty cell of a variable, unless the variable is unbound."""
    for value in content:
        cell.cell_contents = value


def content_of_cell(cell: types.CellType) -> tuple[Any, ...]:
    """Returns what `fill_cell` puts into an empty cell."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def closes_over_new(value: Any, known: Container[int]) -> bool:
    """Returns True if a function that is not known, and that `is_local` excludes, closes over an
    object that may change and is not known either.

    Args:
        known: the ids of the objects that existed before.
    """
    rest, seen = [value], set()
    while rest:
        function = rest.pop()
        if type(function) is not types.FunctionType or id(function) in known or function in seen:
            continue
        seen.add(function)
        if is_local(function):
            continue
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # the variable is unbound
                held = cell.cell_contents
                rest.append(held)
                changes = isinstance(held, _CHANGING) or is_plain(type(held))
                if changes and id(held) not in known:
                    return True
    return False
