"""Visits objects of any class: their attributes, their slots, or the state that they provide."""

import functools
import gc
import logging
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.jit import ScriptModule
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from calque.errors import TraceError
from calque.state.finding.classes import hold_kind, hold_own_dict
from calque.state.finding.waiting import visit_waiting
from calque.state.library_values import is_of_the_user, is_random
from calque.state.named import WITHOUT_METHODS
from calque.state.opaque import is_read_by, moves, objects_in, opaque
from calque.state.ownership import Owner, home_of_class, owner_of_class
from calque.state.paths import Path
from calque.state.rows import AttributeRow, DictRow, StateRow, set_attribute
from calque.state.values import ATOMIC, instance_dict

if TYPE_CHECKING:
    from calque.state.snapshot import Snapshot

_MEMBERS = frozenset(("_parameters", "_buffers", "_modules"))
_HOOKS = frozenset(name for name, value in vars(Module()).items() if type(value) is OrderedDict)
"""The attributes of a module that hold its hooks."""
_SETTINGS_OF_LOGGERS: dict[str, Callable[[Any], Any]] = {
    "level": lambda logger: logger.level,
    "disabled": lambda logger: logger.disabled,
    "propagate": lambda logger: logger.propagate,
    "disable": lambda logger: logger.manager.disable,  # set for all loggers by `logging.disable`
}


def visit_object(snapshot: "Snapshot", value: object, path: Path) -> None:
    """Visits an object whose class has no handler."""
    kind = type(value)
    if owner_of_class(kind) is Owner.ENGINE and not is_of_the_user(kind):
        inner = getattr(kind, "__calque_state__", None)
        if inner is not None:
            snapshot.stack.append((inner(value), path))
    elif visit_waiting(snapshot, value, path):
        return
    elif moves(value):
        hold_opaque(snapshot, value, path)
    else:
        hold_attributes(snapshot, value, path)


def hold_attributes(
    snapshot: "Snapshot", value: object, path: Path, is_container: bool = False
) -> None:
    """Record the class of an object, its attributes and its slots.

    Args:
        is_container: whether its contents as a container are recorded already.
    """
    kind = type(value)
    held = instance_dict(value)
    slots = _slots_of_the_user(kind)
    if held is None and not slots and not is_container:
        hold_opaque(snapshot, value, path)
        return
    hold_kind(snapshot, value, path)
    if held is not None:
        if owner_of_class(kind) is Owner.USER or not is_container:
            hold_own_dict(snapshot, value, path)
        if _is_read_by_name(snapshot, value):
            snapshot.known[id(held)] = held
            snapshot.namespaces.hold(held, path, ("d", id(value)))
            _read_by_name(snapshot, ("d", id(value)), kind)
        else:
            snapshot.hold_dict(held, path, attribute=True)
            if kind in WITHOUT_METHODS:
                snapshot.namespaces.reach_by_name(snapshot.rows[id(held)], value)
    if slots:
        row = AttributeRow(value, path, slots, set_attribute)
        snapshot.push_items(snapshot.hold(row, ("s", id(value))))
        _read_by_name(snapshot, ("s", id(value)), kind)


def _read_by_name(snapshot: "Snapshot", key: object, kind: type) -> None:
    if owner_of_class(kind) is Owner.USER:
        snapshot.namespaces.read_by_name(snapshot.rows[key], kind)


def _is_read_by_name(snapshot: "Snapshot", value: object) -> bool:
    """Returns True if only the attributes that code names matter."""
    if issubclass(type(value), LRScheduler):  # a scheduler steps outside the program
        return not snapshot.namespaces.schedulers_run
    return owner_of_class(type(value)) is Owner.USER and not snapshot.namespaces.whole


@functools.lru_cache(maxsize=4096)
def _slots_of_the_user(kind: type) -> dict[str, Callable[[Any], Any]]:
    """Returns a function that reads each slot declared by a user's class."""
    found: dict[str, Callable[[Any], Any]] = {}
    for base in kind.__mro__:
        for name, value in vars(base).items():
            if isinstance(value, types.MemberDescriptorType) and owner_of_class(base) is Owner.USER:
                found.setdefault(name, lambda o, get=value.__get__: get(o))
    return found


def hold_opaque(snapshot: "Snapshot", value: object, path: Path) -> None:
    """Record the state of an object without attributes, if it provides one."""
    snapshot.libraries.imply(home_of_class(type(value)))
    if owner_of_class(type(value)) is Owner.ENGINE and not is_random(value):
        return
    how = opaque(value)
    if how is None:
        snapshot.push_unnamed(referents(value), path)
        return
    row = snapshot.hold(StateRow(value, path, how.read, how.write))
    row.guarded = how.guarded or is_read_by(value, snapshot.namespaces.words)
    if not how.guarded:
        snapshot.moving.append(row)
    snapshot.push_unnamed(how.inner, path)
    if how.guarded:
        snapshot.push_unnamed(objects_in(row.before[None]), path)


def referents(value: object) -> list[Any]:
    """Returns the objects that an object refers to, without classes and modules."""
    found = gc.get_referents(value)
    return [item for item in found if not isinstance(item, type | types.ModuleType)]


# Objects of PyTorch and Python --------------------------------------------------------------------


def visit_module(snapshot: "Snapshot", value: Module, path: Path) -> None:
    """Visits an `nn.Module`, whose members are its attributes."""
    if isinstance(value, ScriptModule):
        raise TraceError(
            f"a TorchScript module ({value.original_name}) is used inside calque.jit, which "
            "cannot see its state (training mode, attributes). Jit the original module, without "
            "torch.jit, or call it outside the jitted function."
        )
    held = vars(value)
    row = snapshot.hold(DictRow(held, path, attribute=True))
    snapshot.known[id(held)] = held
    for name, item in row.before.items():
        if type(item) in ATOMIC:
            continue
        if name in _MEMBERS:
            _hold_members(snapshot, item, path.members(name))
        elif type(item) is OrderedDict and name in _HOOKS:
            snapshot.namespaces.hold_hooks(name, item, path.attribute(name))
        else:
            snapshot.stack.append((item, path.attribute(name)))
    if owner_of_class(type(value)) is Owner.USER:
        snapshot.namespaces.read_by_name(row, type(value))
    hold_own_dict(snapshot, value, path)
    hold_kind(snapshot, value, path)


def _hold_members(snapshot: "Snapshot", held: dict[str, Any], path: Path) -> None:
    if id(held) not in snapshot.known:
        snapshot.known[id(held)] = held
        row = snapshot.hold(DictRow(held, path, attribute=True))
        snapshot.stack += [(item, path.attribute(name)) for name, item in row.before.items()]


def visit_optimizer(snapshot: "Snapshot", value: Optimizer, path: Path) -> None:
    """Visits an optimizer."""
    held = vars(value)
    if id(held) not in snapshot.known:
        snapshot.hold_dict(held, path, attribute=True)
    hold_own_dict(snapshot, value, path)
    hold_kind(snapshot, value, path)


def visit_logger(snapshot: "Snapshot", value: logging.Logger, path: Path) -> None:
    """Visits a logger: its settings and its ancestors', and the program's own handlers."""
    logger: logging.Logger | None = value
    while logger is not None:
        row = AttributeRow(logger, path, _SETTINGS_OF_LOGGERS, _set_logger)
        snapshot.hold(row, ("l", id(logger)))
        own = (h for h in logger.handlers if owner_of_class(type(h)) is Owner.USER)
        snapshot.stack += [(handler, path.attribute("handlers")) for handler in own]
        logger = logger.parent if logger.propagate else None


def _set_logger(owner: logging.Logger, name: str, value: Any) -> None:
    if name == "level":
        owner.setLevel(value)  # clears the cached levels of loggers
    elif name == "disable":
        logging.disable(value)
    else:
        setattr(owner, name, value)
