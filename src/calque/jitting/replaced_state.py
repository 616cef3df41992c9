"""State variables whose tensor is replaced between calls by code outside the function."""

import dis
from collections.abc import Container, Iterable, Iterator
from functools import lru_cache
from types import CodeType
from typing import Any

from calque.jitting.effects import Rebound
from calque.program import trees
from calque.program.structures import can_open
from calque.program.trees import is_tensor
from calque.state import Snapshot, StateGuard
from calque.state.names import names_of
from calque.state.ownership import Owner
from calque.state.reads import ATTRIBUTES, VARIABLES
from calque.state.rows import DictRow, Row, SetRow
from calque.state.values import SCALARS, instance_dict, is_same_key
from calque.state.weak import WeakRow

_MOST = 64
_MOST_BELOW = 1024
Place = tuple[Any, Any]
"""A container and a key in it."""


class Exchanged:
    """The variables whose tensors were replaced, as by `self.hidden = hidden.detach()`.

    A program compares the tensor of a variable by identity. If it was replaced, the next program
    reads the variable in each call, as an input.

    Attributes:
        places: the variables.
    """

    def __init__(self) -> None:
        self.places: tuple[Place, ...] = ()

    def learn(self, guard: object) -> None:
        """Record the variable for which a guard has failed."""
        found = guard.first_difference() if isinstance(guard, StateGuard) else None
        if found is None or len(self.places) == _MOST:
            return
        row, key = found
        before: Any = row.before.get(key)
        now: Any = row.get(key)
        if isinstance(row, WeakRow):
            before, now = row.referred(before), row.referred(now)
        known = any(owner is row.owner and is_same_key(key, other) for owner, other in self.places)
        if not known and _may_take_place(now, before):
            self.places += ((row.owner, key),)


def _is_plain(value: Any) -> bool:
    return is_tensor(value) and not value.requires_grad


def _may_take_place(now: Any, before: Any) -> bool:
    """Returns True for two tensors of the same form, or two containers or plain objects."""
    if _is_plain(before) and _is_plain(now):
        return (before.shape, before.dtype) == (now.shape, now.dtype)
    return type(before) is type(now) and (_is_container(now) or _is_of_tensors(now))


def _is_container(value: Any) -> bool:
    if isinstance(value, tuple):
        return False
    return isinstance(value, dict | list) or can_open(type(value))


def _is_of_tensors(value: Any) -> bool:
    """Returns True for a tuple of tensors, plain values and such tuples, at least one tensor."""
    if not isinstance(value, tuple) or instance_dict(value) is not None:
        return False
    found = [one for one in value if not (isinstance(one, tuple) and _is_of_tensors(one))]
    plain = all(_is_plain(one) or type(one) in SCALARS for one in found)
    return plain and (len(found) < len(value) or any(map(_is_plain, found)))


def exchanged(
    places: tuple[Place, ...], snapshot: Snapshot, changed: set[Place], kept: Container[int]
) -> Iterator[Rebound]:
    """Yields the replaced variables that a trace has found, except those in `changed` (pairs of a
    row's id and a key), of which it yields what their containers hold.

    Yields none if the program may compare tensors by identity.

    Args:
        kept: the ids of the objects that each call returns or stores, so that no tuple may replace
            them.
    """
    if not places or compares_tensors(snapshot):
        return
    rows: dict[int, list[Row]] = {}
    for row in snapshot.rows.values():
        rows.setdefault(id(row.owner), []).append(row)
    stack = [(row, key, False) for owner, key in places for row in rows.get(id(owner), ())]
    seen: set[Place] = set()
    while stack and len(seen) < _MOST_BELOW:
        row, key, is_left = stack.pop()  # whether a container that the program replaces holds it
        value: Any = row.before.get(key)
        if (id(row), key) in seen:
            continue
        seen.add((id(row), key))
        is_changed = not changed.isdisjoint(((id(row), key), (id(row), None)))
        if snapshot.tells((value,)) or (is_changed and not _is_container(value)):
            continue
        if _is_plain(value) or (is_left and is_tensor(value)):
            yield Rebound(row, key, [value], None, [], None)
        elif _is_of_tensors(value):
            leaves = trees.tensors_in(value)
            if leaves is not None and id(value) not in kept and not snapshot.tells(leaves[0]):
                yield Rebound(row, key, *leaves, [], None)
        elif _is_container(value):
            owners = (value, instance_dict(value))
            below = [
                one for owner in owners if owner is not None for one in rows.get(id(owner), ())
            ]
            stack += [
                (one, name, is_left or is_changed)
                for one in below
                for name, held in one.before.items()
                if not is_changed or _is_container(held)  # the program's own outcome has the rest
            ]


def compares_tensors(snapshot: Snapshot, tensors: Iterable[Any] = ()) -> bool:
    """Returns True if the program may tell by comparing it with others which tensor it has.

    Args:
        tensors: those that may differ in each call.
    """
    return snapshot.compares_objects or snapshot.tells(tensors) or _has_keys(snapshot)


def _has_keys(snapshot: Snapshot) -> bool:
    """Returns True if tensors are keys of a dict or elements of a set, which are found by identity.

    It ignores an optimizer's dict, whose keys are parameters.
    """
    return any(
        any(map(_is_plain, row.before if isinstance(row, DictRow) else row.before.values()))
        for row in snapshot.rows.values()
        if isinstance(row, DictRow | SetRow)
    )


def asks_which_gradient(snapshot: Snapshot) -> bool:
    """Returns True if the user's code calls `id` with a gradient, where calls are not seen."""
    codes = snapshot.codes.items() if snapshot.identifies_any else ()
    return any(owner is Owner.USER and _asks_id(code, "grad") for code, owner in codes)


@lru_cache(maxsize=4096)
def _asks_id(code: CodeType, name: str) -> bool:
    """Returns True if code calls `id` with an attribute, or with a variable that holds it.

    >>> _asks_id((lambda p, seen: id(p.grad) in seen).__code__, "grad")
    True
    >>> _asks_id((lambda p, state: state[id(p)].mul_(p.grad)).__code__, "grad")
    False
    """
    if "id" not in names_of(code).globals or name not in code.co_names:
        return False
    steps = list(dis.get_instructions(code))
    loads = [one.opname in ATTRIBUTES and one.argval == name for one in steps]
    stored = [one for one, loaded in zip(steps[1:], loads) if loaded and "STORE" in one.opname]
    holding = {one.argval for one in stored}
    asking = False
    for one, loaded in zip(steps, loads):
        if asking and (loaded or ("LOAD" in one.opname and one.argval in holding)):
            return True
        asking = (asking and not one.opname.startswith("CALL")) or (
            one.opname in VARIABLES and one.argval == "id"
        )
    return False
