"""Visits classes: the user's are recorded completely, a library's only where the program may have
changed them.
"""

import abc
import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.nn import Module
from torch.optim import Optimizer

from calque.state.library_values import functions_of
from calque.state.lookups import looks_names_up, registered
from calque.state.ownership import Owner, home_of_class, owner_of_class
from calque.state.patched import functional_of
from calque.state.paths import Path
from calque.state.rows import (
    AttributeRow,
    NamedRow,
    StateRow,
    TracedDefaultsRow,
    set_attribute,
)
from calque.state.values import instance_dict
from calque.upstream.torch_internals import Distribution

if TYPE_CHECKING:
    from calque.state.snapshot import Snapshot

_KIND: dict[str, Callable[[Any], Any]] = {"__class__": type}
_IMMUTABLE = 1 << 8
"""The flag of classes in C whose attributes cannot be assigned (`Py_TPFLAGS_IMMUTABLETYPE`)."""
_REPLACED = (Module, Optimizer)
"""Objects of libraries whose class programs change."""
_OWN_DICT: dict[str, Callable[[Any], Any]] = {"__dict__": instance_dict}
_ORDER: dict[str, Callable[[Any], Any]] = {
    "__mro__": lambda kind: kind.__mro__,
    "__name__": lambda kind: kind.__name__,
}


def visit_class(snapshot: "Snapshot", value: type, path: Path) -> None:
    """Visits a class and its bases."""
    if id(value) in snapshot.classes:
        return
    snapshot.classes[id(value)] = value
    if looks_names_up(value):
        snapshot.namespaces.look_anywhere()
    for base in value.__mro__:
        if isinstance(base, abc.ABCMeta) and ("a", id(base)) not in snapshot.rows:
            snapshot.hold(StateRow(base, Path(base.__name__), registered), ("a", id(base)))
        if base is object or ("c", id(base)) in snapshot.rows:
            continue
        snapshot.known[id(base)] = base
        if owner_of_class(base) is Owner.USER:
            _hold_users_class(snapshot, base)
        else:
            _hold_librarys_class(snapshot, base)


def _hold_users_class(snapshot: "Snapshot", kind: type) -> None:
    _keep_functions(snapshot, kind)
    if vars(kind).get("_is_protocol") is True:  # `isinstance` checks for its members
        members = {*vars(kind), *vars(kind).get("__annotations__", ())}
        snapshot.use(frozenset(n for n in members if not n.startswith("_")))
    path = Path(kind.__name__)
    snapshot.namespaces.hold_class(kind, path)
    snapshot.hold(AttributeRow(kind, path, _ORDER, None), ("o", id(kind)))
    if type(kind) is not type:
        snapshot.stack.append((type(kind), Path(type(kind).__name__)))


def _hold_librarys_class(snapshot: "Snapshot", kind: type) -> None:
    owner = owner_of_class(kind)
    snapshot.libraries.imply(home_of_class(kind))
    if owner is Owner.PACKAGE:
        _keep_functions(snapshot, kind)
    elif owner is Owner.ENGINE and issubclass(kind, Module):
        snapshot.namespaces.hold_functional(functional_of(kind))
    if kind.__flags__ & _IMMUTABLE:
        return
    path = Path(kind.__name__, foreign=True)
    row = TracedDefaultsRow if kind is Distribution else NamedRow
    snapshot.namespaces.hold(vars(kind), path, ("c", id(kind)), kind=row)  # pyright: ignore[reportArgumentType]


def _keep_functions(snapshot: "Snapshot", kind: type) -> None:
    """Record the methods of a class: the user's are visited at once, a package's when their code
    runs.
    """
    for value in list(vars(kind).values()):
        for function in functions_of(value):
            if owner_of_class(kind) is Owner.USER:
                path = Path(kind.__name__).attribute(function.__name__)
                snapshot.stack.append((function, path))
            else:
                snapshot.code.keep(function)


def hold_kind(snapshot: "Snapshot", value: object, path: Path) -> None:
    """Record the class of an object."""
    kind = type(value)
    if owner_of_class(kind) is Owner.USER or isinstance(value, _REPLACED):
        snapshot.hold(AttributeRow(value, path, _KIND, set_attribute), ("k", id(value)))
    visit_class(snapshot, kind, Path(kind.__name__))


def hold_own_dict(snapshot: "Snapshot", value: object, path: Path) -> None:
    """Record the identity of an object's dict, because `value.__dict__ = {...}` changes no dict."""
    snapshot.hold(AttributeRow(value, path, _OWN_DICT, set_attribute), ("h", id(value)))


def visit_enum(snapshot: "Snapshot", value: enum.Enum, path: Path) -> None:
    """Visits a member of an enumeration."""
    hold_kind(snapshot, value, path)
    snapshot.namespaces.hold(vars(value), path, ("d", id(value)))
