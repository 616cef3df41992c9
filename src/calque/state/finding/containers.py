"""Visits containers: dicts, lists, sets, tuples, buffers, closure variables, weak references."""

import contextvars
import sys
import threading
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from calque.state.contents import elements_of
from calque.state.finding.classes import visit_class
from calque.state.finding.objects import hold_attributes, referents
from calque.state.lookups import LocalRow
from calque.state.ownership import Owner, owner_of_module
from calque.state.paths import Path
from calque.state.rows import (
    AttributeRow,
    BytesRow,
    CellRow,
    ContextRow,
    ListRow,
    SetRow,
    StateRow,
)
from calque.state.values import ATOMIC, instance_dict
from calque.state.weak import proxied

if TYPE_CHECKING:
    from calque.state.snapshot import Snapshot

_LENGTH: dict[str, Callable[[Any], Any]] = {"maxlen": lambda d: d.maxlen}
_FACTORY: dict[str, Callable[[Any], Any]] = {"default_factory": lambda d: d.default_factory}


def visit_dict(snapshot: "Snapshot", value: dict[Any, Any], path: Path) -> None:
    """Visits a dict of any class."""
    module = _module_of(value)
    if module is not None and owner_of_module(module) < Owner.USER:
        snapshot.libraries.hold(module)
        return
    snapshot.hold_dict(value, path)
    if isinstance(value, defaultdict):
        row = snapshot.hold(AttributeRow(value, path, _FACTORY, _set_factory), ("f", id(value)))
        snapshot.push_items(row)
    if type(value) is not dict:
        hold_attributes(snapshot, value, path, is_container=True)


def _module_of(value: dict[Any, Any]) -> types.ModuleType | None:
    """Returns the module whose variables are in a dict, as in the `__builtins__` of others."""
    name = dict.get(value, "__name__") if type(value) is dict else None
    module = sys.modules.get(name) if type(name) is str else None
    return module if type(module) is types.ModuleType and vars(module) is value else None


def _set_factory(owner: defaultdict[Any, Any], name: str, value: Any) -> None:
    owner.default_factory = value


def visit_list(snapshot: "Snapshot", value: object, path: Path) -> None:
    """Visits a list or a deque."""
    snapshot.push_items(snapshot.hold(ListRow(value, path)))
    if isinstance(value, deque):
        snapshot.hold(AttributeRow(value, path, _LENGTH, None), ("n", id(value)))
    if type(value) not in (list, deque):
        hold_attributes(snapshot, value, path, is_container=True)


def visit_set(snapshot: "Snapshot", value: object, path: Path) -> None:
    """Visits a set."""
    snapshot.push_items(snapshot.hold(SetRow(value, path)))
    if type(value) is not set:
        hold_attributes(snapshot, value, path, is_container=True)


def visit_exception(snapshot: "Snapshot", value: BaseException, path: Path) -> None:
    """Visits an exception, which holds its arguments."""
    row = snapshot.hold(StateRow(value, path.attribute("args"), lambda error: error.args))
    snapshot.stack.append((row.before[None], row.path))
    hold_attributes(snapshot, value, path, is_container=True)


def visit_tuple(snapshot: "Snapshot", value: object, path: Path) -> None:
    """Visits a tuple or a frozenset, which is itself immutable."""
    for index, item in enumerate(elements_of(value)):
        if type(item) not in ATOMIC and id(item) not in snapshot.known:
            snapshot.stack.append((item, path.item(index)))
    if instance_dict(value) is not None:
        hold_attributes(snapshot, value, path, is_container=True)
    elif type(value) not in (tuple, frozenset, torch.Size):
        visit_class(snapshot, type(value), Path(type(value).__name__))


def visit_alias(snapshot: "Snapshot", value: Any, path: Path) -> None:
    """Visits what a type annotation such as `list[int]` contains."""
    snapshot.stack += [(one, path) for one in value.__args__]


def visit_buffer(snapshot: "Snapshot", value: Any, path: Path) -> None:
    """Visits a bytearray, an `array.array`, a NumPy array or a value of `ctypes`."""
    if isinstance(value, np.ndarray) and value.dtype == np.object_:
        snapshot.hold(StateRow(value, path, lambda o: tuple(o.flat)))
        snapshot.push_unnamed(value.flat, path.item("..."))
    else:
        snapshot.hold(BytesRow(value, path))
    if instance_dict(value) is not None:
        hold_attributes(snapshot, value, path, is_container=True)


def visit_cell(snapshot: "Snapshot", value: types.CellType, path: Path) -> None:
    """Visits a variable of an enclosing function."""
    row = snapshot.hold(CellRow(value, path))
    snapshot.stack += [(item, path) for item in row.before.values()]


def visit_context(snapshot: "Snapshot", value: contextvars.ContextVar[Any], path: Path) -> None:
    """Visits a context variable, in the context of this thread."""
    row = snapshot.hold(ContextRow(value, path))
    snapshot.stack += [(item, path) for item in row.before.values()]


def visit_local(snapshot: "Snapshot", value: threading.local, path: Path) -> None:
    """Visits the attributes of a `threading.local`, in this thread."""
    snapshot.push_items(snapshot.hold(LocalRow(value, path)))


def visit_referents(snapshot: "Snapshot", value: object, path: Path) -> None:
    """Visits an object whose contents only the garbage collector can list."""
    snapshot.push_unnamed(referents(value), path)


# Weak references ----------------------------------------------------------------------------------


def visit_weak(snapshot: "Snapshot", value: weakref.ref[Any], path: Path) -> None:
    """Visits a weak reference."""
    target = value()
    if isinstance(value, weakref.WeakMethod) and target is not None:  # a new bound method
        snapshot.stack.append((target.__func__, path))
        target = target.__self__
    if target is not None:
        snapshot.weak[id(target)] = target
        snapshot.push_unnamed((target,), path)


def visit_proxied(snapshot: "Snapshot", value: object, path: Path) -> None:
    """Visits the object that a `weakref.proxy` refers to."""
    target = proxied(value)
    if target is not None:
        snapshot.weak[id(target)] = target
        snapshot.push_unnamed((target,), path)


def visit_weak_container(snapshot: "Snapshot", value: Any, path: Path) -> None:
    """Visits a container of weak references."""
    if not path.foreign:
        snapshot.push_unnamed((value.data,), path)
