"""Visits functions, methods and descriptors, and the modules that hold them."""

import functools
import types
from typing import TYPE_CHECKING, Any

from calque.state.finding.objects import hold_opaque
from calque.state.impure_builtins import differs
from calque.state.lookups import looks_names_up, words_of_getter
from calque.state.ownership import Owner, owner_of_code, owner_of_module
from calque.state.paths import Path
from calque.state.rows import CacheRow, StateRow, function_row
from calque.state.settings import is_setting
from calque.state.values import instance_dict

if TYPE_CHECKING:
    from calque.state.snapshot import Snapshot


def visit_function(snapshot: "Snapshot", value: types.FunctionType, path: Path) -> None:
    """Visits a function; the user's code and defaults may change."""
    owner = owner_of_code(value.__code__, value.__globals__)
    if owner is Owner.USER:
        snapshot.push_items(snapshot.hold(function_row(value, path)))
        snapshot.hold_dict(value.__dict__, path, attribute=True)
        snapshot.namespaces.read_by_name(snapshot.rows[id(value.__dict__)], types.FunctionType)
        if "__annotations__" in snapshot.namespaces.words:
            snapshot.hold_dict(value.__annotations__, path.attribute("__annotations__"))
    elif path.key in snapshot.namespaces.own_words:
        home = Path(str(path), foreign=True)
        snapshot.namespaces.hold(value.__dict__, home, ("f", id(value)))
    ran = snapshot.code.add(value, owner)
    if not ran and owner is Owner.ENGINE and "__wrapped__" in value.__dict__:
        snapshot.stack.append((value.__dict__["__wrapped__"], path))
        snapshot.code.variables(value)


def visit_method(snapshot: "Snapshot", value: types.MethodType, path: Path) -> None:
    """Visits a bound method."""
    own = Path("self") if path.parent is None and not path.key else path
    snapshot.stack += [(value.__self__, own), (value.__func__, path)]


def visit_builtin(snapshot: "Snapshot", value: types.BuiltinFunctionType, path: Path) -> None:
    """Visits a function that is not written in Python."""
    owner = value.__self__
    if looks_names_up(value):
        snapshot.namespaces.look_anywhere()
    if differs(value):
        snapshot.has_differing = True
        snapshot.on_difference()
    elif not path.foreign and is_setting(value, value.__name__):
        snapshot.libraries.hold_setting(value, path)
    elif owner is not None and not isinstance(owner, types.ModuleType | type):
        snapshot.push_unnamed((owner,), path)


def visit_partial(snapshot: "Snapshot", value: functools.partial[Any], path: Path) -> None:
    """Visits a `functools.partial`."""
    snapshot.stack += [(value.func, path), (value.args, path)]
    snapshot.push_unnamed((value.keywords, *value.keywords.values()), path)
    snapshot.hold(StateRow(value, path, lambda p: (p.func, p.args, p.keywords)))
    _hold_own_attributes(snapshot, value, path)


def _hold_own_attributes(snapshot: "Snapshot", value: Any, path: Path) -> None:
    """Keep the attributes that a program has given to something that is called."""
    held = instance_dict(value)
    if held is not None:
        snapshot.hold_dict(held, path, attribute=True)


def visit_descriptor(snapshot: "Snapshot", value: object, path: Path) -> None:
    """Visits a property, a class method or a similar descriptor."""
    names = ("__func__", "fget", "fset", "fdel", "func", "__wrapped__")
    snapshot.stack += [(getattr(value, n), path) for n in names if hasattr(value, n)]


def visit_getter(snapshot: "Snapshot", value: object, path: Path) -> None:
    """Visits an `operator.attrgetter` or `methodcaller`, which holds names of attributes."""
    snapshot.use(frozenset(words_of_getter(value)))
    hold_opaque(snapshot, value, path)


def visit_cache(snapshot: "Snapshot", value: Any, path: Path) -> None:
    """Visits a function with a cache of `functools.lru_cache`."""
    if path.foreign:
        snapshot.visit_library_cache(value, path)
        return
    row = snapshot.hold(CacheRow(value, path))
    snapshot.stack.append((value.__wrapped__, path))
    snapshot.push_unnamed((result for _, result in row.before["entries"].values()), path)
    _hold_own_attributes(snapshot, value, path)


def visit_python_module(snapshot: "Snapshot", value: types.ModuleType, path: Path) -> None:
    """Visits a Python module."""
    if owner_of_module(value) is Owner.USER:
        snapshot.namespaces.hold_module(value, path)
    else:
        snapshot.libraries.hold(value)
