"""Finds code that looks things up by computed names, or that runs unobserved.

For such code, whole namespaces and all modules of the user are relevant.
"""

import abc
import builtins
import importlib
import inspect
import operator
import pickle
import sys
import threading
import types
from collections.abc import Collection, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from calque.state.names import words_in
from calque.state.ownership import Owner, owner_of_module
from calque.state.rows import Row
from calque.state.values import MISSING


class AllNames(Collection[str]):
    """All names of a namespace except special names, of which only some are included.

    Args:
        words: the included special names.
    """

    def __init__(self, words: Collection[str]) -> None:
        self._words = words

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str) and name.startswith("__") and name.endswith("__"):
            return name in self._words
        return True

    def __len__(self) -> int:
        return sys.maxsize  # at least as many as any namespace

    def __iter__(self) -> Iterator[str]:
        raise TypeError("these names cannot be enumerated")


_LOOK_UP = (
    *(builtins.getattr, builtins.setattr, builtins.hasattr, builtins.delattr),
    *(builtins.vars, builtins.dir, pickle.dump, pickle.dumps),
    *(operator.attrgetter, operator.methodcaller, inspect.getmembers, inspect.getattr_static),
)
_IMPORT = (importlib.import_module, builtins.__import__)
_LOOKS_UP = frozenset(map(id, _LOOK_UP))
_FINDS_MODULES = frozenset(map(id, _IMPORT))
GETTERS = (operator.attrgetter, operator.methodcaller)
"""Objects that contain names of attributes."""


def looks_names_up(value: object) -> bool:
    """Returns True if a value is a function that takes names of attributes."""
    return id(value) in _LOOKS_UP


def finds_modules(value: object) -> bool:
    """Returns True if a value returns modules by name."""
    return value is sys.modules or id(value) in _FINDS_MODULES


def modules_of_the_user() -> list[types.ModuleType]:
    """Returns the user's modules that were imported."""
    found = list(sys.modules.values())
    return [m for m in found if isinstance(m, types.ModuleType) and _is_users(m)]


def _is_users(module: types.ModuleType) -> bool:
    return owner_of_module(module) is Owner.USER


_HANDING_OVER = {
    "threading": frozenset(("start", "wait", "join", "_wait_for_tstate_lock")),
    "concurrent.futures.thread": frozenset(("submit",)),
    "multiprocessing.pool": frozenset(("apply_async", "_map_async", "imap", "imap_unordered")),
}


def hands_over(code: types.CodeType, held: dict[str, Any]) -> bool:
    """Returns True if code of the standard library passes work to another thread, or waits for
    one.
    """
    return code.co_name in _HANDING_OVER.get(held.get("__name__", ""), ())


def words_of_getter(getter: object) -> set[str]:
    """Returns the names that an `attrgetter` or a `methodcaller` looks up."""
    texts = getter.__reduce__()[1]
    return {word for text in texts if isinstance(text, str) for word in words_in(text)}


class LocalRow(Row):
    """The attributes of a `threading.local` in the current thread."""

    __slots__ = ()

    ordered = False

    def items(self) -> dict[Any, Any]:
        return dict(_local_dict(self.owner, "__dict__"))

    def put(self, key: object, value: object) -> None:
        held = _local_dict(self.owner, "__dict__")
        if value is MISSING:
            held.pop(key, None)
        else:
            held[key] = value


_local_dict = threading.local.__getattribute__
_known: WeakKeyDictionary[type, tuple[object, frozenset[type]]] = WeakKeyDictionary()


def registered(kind: type) -> frozenset[type]:
    """Returns the virtual subclasses registered with an abstract class or its subclasses."""
    token = abc.get_cache_token()
    known = _known.get(kind)
    if known is None or known[0] != token:
        found: set[type] = set()
        for one in _family(kind):
            references, *_ = abc._get_dump(one)  # type: ignore[attr-defined]
            found.update(c for reference in references if (c := reference()) is not None)
        known = _known[kind] = token, frozenset(found)
    return known[1]


def _family(kind: type) -> set[type]:
    found, stack = set(), [kind]
    while stack:
        one = stack.pop()
        if one not in found and isinstance(one, abc.ABCMeta):
            found.add(one)
            stack += type.__subclasses__(one)
    return found
