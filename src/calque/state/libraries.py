"""State in library modules that may be the program's: settings, registries, lists."""

import functools
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from calque.errors.handlers import is_of_handler
from calque.state.library_values import matters_in_library, registries_in
from calque.state.lookups import finds_modules
from calque.state.ownership import (
    Owner,
    home_of_class,
    owner_of_class,
    owner_of_module,
    owner_of_name,
)
from calque.state.package_caches import caches_in, row_of_cache
from calque.state.paths import Path
from calque.state.rows import DictRow, NamedRow, StateRow
from calque.state.settings import has_settings, is_setting, setting_of
from calque.state.stand_ins import original
from calque.state.stores import belongs_to
from calque.state.values import ATOMIC, MISSING, instance_dict

if TYPE_CHECKING:
    from calque.state.snapshot import Snapshot

_MOST_ENTRIES = 1000
_IMPLIED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "decimal": ("getcontext", lambda held: setting_of(held["getcontext"])),
    "signal": ("getsignal", lambda held: tuple(map(held["getsignal"], held["valid_signals"]()))),
    "warnings": ("filters", lambda held: tuple(held["filters"])),
}
"""What a library's module depends on, though no code names it: its name, and what reads it."""
_HANDLERS = frozenset(("getsignal", "signal"))

_CONTAINERS = (list, dict, set, deque, bytearray, types.SimpleNamespace)
_THREAD = "current_thread"


class Libraries:
    """The library modules that the program reaches (see the module).

    Args:
        snapshot: the snapshot in which to record their state.
    """

    def __init__(self, snapshot: "Snapshot") -> None:
        self._snapshot = snapshot
        self._modules: list[tuple[types.ModuleType, Path]] = []
        self._objects: list[tuple[Any, Path]] = []

    def hold(self, module: types.ModuleType) -> None:
        """Record a module's relevant names."""
        path = Path(module.__name__, foreign=True)
        self._snapshot.namespaces.hold(vars(module), path, ("m", id(module)))
        self._modules.append((module, path))
        self._look(module, path, self._snapshot.namespaces.words)
        self.imply(module.__name__)

    def use(self, words: Iterable[str]) -> None:
        """Is called when more names matter."""
        if _THREAD in words and ("i", _THREAD) not in self._snapshot.rows:
            row = StateRow(threading, Path(_THREAD, foreign=True), _name_of_thread)
            self._snapshot.hold(row, ("i", _THREAD))
        for module, path in self._modules:
            self._look(module, path, words)
        for value, path in self._objects:
            self._hold_attributes(value, path, words)

    def imply(self, module: str) -> None:
        """Hold what a library's module depends on."""
        if module in _IMPLIED and ("i", module) not in self._snapshot.rows:
            name, read = _IMPLIED[module]
            if module == "signal" and _HANDLERS.isdisjoint(self._snapshot.namespaces.own_words):
                return  # some sixty handlers, which the program neither asks for nor sets
            path = Path(module, foreign=True).attribute(name)
            self._snapshot.hold(StateRow(vars(sys.modules[module]), path, read), ("i", module))

    def hold_settings(self, value: object, path: Path) -> None:
        """Record the settings of an object that code names."""
        self._snapshot.known[id(value)] = value
        self._objects.append((value, path))
        self._hold_attributes(value, path, self._snapshot.namespaces.words)

    def _hold_attributes(self, value: object, path: Path, words: Iterable[str]) -> None:
        for name in words:
            if _read_attribute(value, name) is not None:
                read = functools.partial(_read_attribute, name=name)
                row = StateRow(value, path.attribute(name), read)
                self._snapshot.hold(row, ("p", id(value), name))

    def hold_setting(self, getter: object, path: Path) -> None:
        """Record a library's setting that a function without arguments returns."""
        if ("v", id(getter)) not in self._snapshot.rows and setting_of(getter) is not MISSING:
            self._snapshot.known[id(getter)] = getter
            self._snapshot.hold(StateRow(getter, path, setting_of), ("v", id(getter)))

    def hold_variables(self, names: Iterable[str], held: dict[str, Any], owner: Owner) -> None:
        """Record the global variables that a library's code names."""
        found = {name: held[name] for name in names if name in held}
        for name, value in found.items():
            if type(value) in ATOMIC:
                continue
            if owner is Owner.PACKAGE:
                self._hold_registries(value, Path(name, foreign=True))
                self._hold_caches(value, Path(name, foreign=True))
            elif _is_table(value) and value and id(value) not in self._snapshot.rows:
                self._snapshot.hold(DictRow(value, Path(name, foreign=True)))
            self._hold_object(value, Path(name, foreign=True))
            if matters_in_library(value):
                foreign = home_of_class(type(value)) != "os"
                self._snapshot.stack.append((value, Path(name, foreign=foreign)))
        scalars = {n for n, v in found.items() if type(v) in ATOMIC}
        if not scalars:
            return
        key = ("g", id(held))
        row = self._snapshot.rows.get(key)
        if not isinstance(row, NamedRow):
            path = Path(str(held.get("__name__", "")), foreign=True)
            row = self._snapshot.hold(NamedRow(held, path, set()), key)
        assert isinstance(row, NamedRow)
        assert isinstance(row.names, set)
        row.before |= {name: held[name] for name in scalars - row.names}
        row.names |= scalars

    def _hold_caches(self, value: object, path: Path) -> None:
        """Record the containers in which a package may keep tensors, which must not outlive a trace
        that is abandoned.
        """
        for cache in caches_in(value):
            key = ("c", id(cache))  # the program's own code may name it, too
            if key not in self._snapshot.rows:
                self._snapshot.hold(row_of_cache(cache, path), key)

    def _look(self, module: types.ModuleType, path: Path, words: Iterable[str]) -> None:
        """Visit the values of a module's relevant names."""
        held, snapshot = vars(module), self._snapshot
        registers = owner_of_module(module) is Owner.PACKAGE
        is_of_numpy = module.__name__.startswith("numpy")
        for name in words:
            value = original(held.get(name))
            if registers and value is not None and type(value) not in ATOMIC:
                self._hold_registries(value, path.attribute(name))
                if name in snapshot.namespaces.own_words:
                    self._hold_object(value, path.attribute(name))
            elif isinstance(value, types.MethodType):  # of an object that the module is about
                self._hold_object(value.__self__, path.attribute(name))
            getter = f"get{name[3:]}"  # what a function sets, another one tells
            if name.startswith("set") and is_of_numpy and is_setting(held.get(getter), getter):
                self.hold_setting(held[getter], path.attribute(getter))
            if is_setting(value, name):
                self.hold_setting(value, path.attribute(name))
            elif name in vars(type(module)) and not hasattr(types.ModuleType, name):
                read = functools.partial(_read_attribute, name=name)
                row = StateRow(module, path.attribute(name), read)
                snapshot.hold(row, ("p", id(module), name))
            if value is None or type(value) in ATOMIC or id(value) in snapshot.known:
                continue
            if has_settings(value):
                self.hold_settings(value, path.attribute(name))
            elif matters_in_library(value) or finds_modules(value):
                home = Path(name) if home_of_class(type(value)) == "os" else path.attribute(name)
                if self._is_for_users_to_change(module, name, value):
                    home = Path(module.__name__).attribute(name)
                snapshot.stack.append((value, home))
            elif isinstance(value, type):
                if name in snapshot.namespaces.own_words:
                    snapshot.stack.append((value, path.attribute(name)))
            elif self._is_for_users_to_change(module, name, value):
                snapshot.stack.append((value, Path(module.__name__).attribute(name)))
            elif registers and name in snapshot.namespaces.own_words and _is_table(value):
                snapshot.hold(
                    DictRow(held[name], path.attribute(name))
                )  # unless the package changes it

    def _hold_registries(self, value: object, path: Path) -> None:
        """Record dicts in which a package looks up functions or classes."""
        for found in registries_in(value):
            if id(found) not in self._snapshot.rows:
                row = self._snapshot.hold(DictRow(found, path))
                own = (v for v in row.before.values() if _is_users_code(v))
                self._snapshot.stack += [(one, Path(path.key)) for one in own]

    def _hold_object(self, value: object, path: Path) -> None:
        """Record an object with a package's settings, excluding changes by the package itself.

        Its contents are not visited; only the attributes that code names are compared.
        """
        owner = Owner.ENGINE if isinstance(value, type) else owner_of_class(type(value))
        if isinstance(value, threading.local):
            self._snapshot.stack.append((value, path))
        elif owner in (Owner.PACKAGE, Owner.PYTHON):
            held = instance_dict(value)
            if held is not None and not isinstance(value, types.ModuleType):
                self._snapshot.known[id(held)] = held
                self._snapshot.namespaces.hold(held, path, ("e", id(value)))

    def _is_for_users_to_change(self, module: types.ModuleType, name: str, value: object) -> bool:
        """Returns True if the program names a container or an object in a library's module that is
        its own, or a list of a Python module, such as `sys.path`.
        """
        if value is None or name not in self._snapshot.namespaces.own_words:
            return False
        if type(value) not in _CONTAINERS:
            return owner_of_class(type(value)) is Owner.USER
        if isinstance(value, list) and owner_of_module(module) is Owner.PYTHON:
            return True
        is_short = isinstance(value, types.SimpleNamespace) or len(value) < _MOST_ENTRIES  # pyright: ignore[reportArgumentType]
        return is_short and not belongs_to(module, name)


def _is_table(value: Any) -> bool:
    """Returns True for a dict that has only plain values."""
    if type(value) is not dict or len(value) >= _MOST_ENTRIES:
        return False
    return all(type(v) in ATOMIC for v in value.values())


def _is_users_code(value: object) -> bool:
    home = getattr(value, "__module__", None)
    return isinstance(home, str) and owner_of_name(home) is Owner.USER


def _name_of_thread(module: Any) -> str:
    return module.current_thread().name


def _read_attribute(owner: object, name: str) -> Any:
    try:
        value = getattr(owner, name, None)
    except Exception as error:  # a setting of an unavailable feature
        if is_of_handler(error):
            raise
        return None
    return value if type(value) in ATOMIC else None
