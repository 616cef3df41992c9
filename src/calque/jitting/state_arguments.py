"""Arguments that also belong to the function's own state, such as a list that it appends to.

A program treats arguments and state as independent. So a program that was traced for arguments
outside the state cannot serve arguments that are part of it; for these, the function is traced in
each call, with the container itself.
"""

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from operator import attrgetter, is_
from types import FunctionType, MethodType
from typing import Any

import torch

from calque.device.memory.cell import Cell
from calque.jitting.objects import Distinct
from calque.jitting.python_effects import PythonState
from calque.program.function_arguments import CALLED
from calque.program.lazy_arguments import Restructure
from calque.program.structures import Structure
from calque.state import Row, Snapshot
from calque.state.rows import DictRow, ListRow

Steps = tuple[Any, ...]
_FUNCTIONS = (*CALLED, MethodType)
_owner = attrgetter("owner")


class Overlap(Exception):
    """Signals that containers among the arguments belong to the state, and must be passed to the
    trace.

    Args:
        places: the paths to them from (args, kwargs).
    """

    def __init__(self, places: Collection[Steps]) -> None:
        self.places: frozenset[Steps] = frozenset(places)


class SharesState(Exception):
    """Signals that arguments share memory with the state, so the trace must be repeated.

    Args:
        cells: the cells of the shared memory.
    """

    def __init__(self, cells: Collection[Cell]) -> None:
        self.cells: frozenset[Cell] = frozenset(cells)


def containers(given: Any, steps: Steps = ()) -> Iterator[tuple[Steps, Any]]:
    """Yields the containers in a call's (args, kwargs), with the paths to them: lists, dicts, and
    tuples of tensors.
    """
    if len(steps) > 1 and isinstance(given, dict | list | tuple):
        if not isinstance(given, tuple) or any(isinstance(one, torch.Tensor) for one in given):
            yield steps, given
    if isinstance(given, dict):
        items = given.items()
    elif isinstance(given, list | tuple):
        items = enumerate(given)
    else:
        return
    for key, item in items:
        if isinstance(item, dict | list | tuple):
            yield from containers(item, (*steps, key))


def overlapping(given: object, held: Container[Any]) -> dict[Steps, Any]:
    """Returns the containers of a call whose ids are among others, of what the function also
    reaches in other ways.
    """
    if given is None:
        return {}
    return {steps: one for steps, one in containers(given) if id(one) in held}


def with_own(tree: Any, places: Collection[Steps], given: Any, steps: Steps = ()) -> Any:
    """Returns a tree like a call's (args, kwargs), with the call's own containers at some
    positions.
    """
    if steps in places:
        return given
    if type(tree) is tuple:
        return tuple(
            with_own(item, places, given[key], (*steps, key)) for key, item in enumerate(tree)
        )
    if isinstance(tree, dict | list):
        for key, item in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
            if isinstance(item, dict | list | tuple):
                tree[key] = with_own(item, places, given[key], (*steps, key))
    return tree


class Apart:
    """Guards that arguments do not belong to the state, except for the tensors and functions that
    did during the trace.

    Args:
        rows: the rows of the state.
        tuples: the tuples of the state, if they are compared.
        containers: whether to compare containers.
        told: the tensors and functions of the state, by id; None if their identity does not
            matter.
        leaves: the leaves of the trace's arguments.
        distinct: distinguishes objects among the arguments from those of the state, if needed.

    Attributes:
        places: variables that may hold other containers and objects in each call.
    """

    guarded = "arguments that belong to the state"

    def __init__(
        self,
        rows: Mapping[Any, Row],
        tuples: Collection[Any],
        containers: bool,
        told: Mapping[int, Any] | None,
        leaves: list[Any],
        distinct: Distinct | None = None,
    ) -> None:
        self._distinct = distinct
        self.places: Sequence[tuple[Row, Any]] = ()
        self._compares = containers
        self._tuples = list(tuples)
        held = [r for r in rows.values() if type(r) in (DictRow, ListRow) and r.guarded]
        self._rows = held if containers else []
        self._owners = [row.owner for row in self._rows]
        self._containers = set(map(id, (*self._owners, *self._tuples)))
        self._told = None if told is None else frozenset(told)
        self._kept = dict(told or {})  # so that their ids are not reused
        self._shared = self._among(leaves)

    def _among(self, leaves: list[Any]) -> list[tuple[int, int]]:
        if self._told is None or self._told.isdisjoint(map(id, leaves)):
            return []
        return [(i, id(leaf)) for i, leaf in enumerate(leaves) if id(leaf) in self._told]

    def holds_for(self, leaves: list[Any], given: object) -> bool:
        """Returns True if the guard holds for a call's leaves and (args, kwargs)."""
        if self._among(leaves) != self._shared:
            return False
        if given is None:
            return True
        now = [row.get(key) for row, key in self.places]
        if self._distinct is not None and self._distinct.shared(given, now):
            return False
        if not self._compares:
            return True
        if not all(map(is_, map(_owner, self._rows), self._owners)):  # others took their places
            self._owners = [row.owner for row in self._rows]
            self._containers = set(map(id, (*self._owners, *self._tuples)))
        held = self._containers.union(id(one) for _, one in containers((now, {}))) if now else ()
        return not overlapping(given, held or self._containers)

    def forget(self, hidden: Collection[int]) -> None:
        """Release tensors, functions and containers that the function cannot reach."""
        if self._told is not None:
            self._told = self._told.difference(hidden)
        self._kept = {key: one for key, one in self._kept.items() if key not in hidden}
        self._rows = [row for row in self._rows if id(row.owner) not in hidden]
        self._owners = [owner for owner in self._owners if id(owner) not in hidden]
        self._tuples = [one for one in self._tuples if id(one) not in hidden]
        self._containers.difference_update(hidden)

    def why(self) -> str:
        """Returns what differs."""
        return "an argument now is, or no longer is, an object of the function's own state"


def apart_of(
    state: PythonState,
    given: object,
    spec: object,
    leaves: list[Any],
    own_containers: frozenset[Any],
    own_tensors: Mapping[int, torch.Tensor],
    stand_ins: list[Any],
) -> Apart | None:
    """Returns the guard that arguments do not belong to the state, if the program depends on this;
    otherwise None.

    Args:
        state: the Python state of the trace.
        given: the call's (args, kwargs), if they are known.
        spec: the structure of the arguments.
        leaves: the arguments.
        own_containers: the paths to containers of the state among the arguments.
        own_tensors: the tensors that the function reaches, by id.
        stand_ins: what the function gets in place of the arguments.

    Raises:
        Overlap: containers among the arguments belong to the state.
        Restructure: flattened objects belong to the state, or the function compares identities.
    """
    snapshot = state.snapshot
    distinct = belonging(state, given, spec, own_containers)
    told_by_is = _told_by_is(snapshot)
    changes = state.changes_containers or told_by_is
    tells = snapshot.compares_objects or snapshot.tells(stand_ins)
    tensors = {**own_tensors, **snapshot.tensors} if tells else {}
    told = {**tensors, **_functions(state, leaves)}
    changes = changes and not own_containers and any(containers(given))
    if changes or told or distinct is not None:
        tuples = [one for one in snapshot.known.values() if type(one) is tuple and told_by_is]
        return Apart(snapshot.rows, tuples, changes, told or None, leaves, distinct)
    return None


def belonging(
    state: PythonState, given: object, spec: object, own_containers: frozenset[Any]
) -> Distinct | None:
    """Returns a check that flattened objects do not belong to the state; None if there are none.

    Raises:
        Overlap, Restructure: see `apart_of`.
    """
    snapshot = state.snapshot
    distinct = _distinct_objects(snapshot, given, spec)
    told_by_is = _told_by_is(snapshot)
    if state.changes_containers or told_by_is:
        found = overlapping(given, snapshot.known if told_by_is else snapshot.rows).keys()
        if not found <= own_containers:
            raise Overlap(found)
    return distinct


def _told_by_is(snapshot: Snapshot) -> bool:
    return snapshot.compares_objects or snapshot.asks_identity


def _functions(state: PythonState, leaves: list[Any]) -> dict[int, Any]:
    """Returns the functions of the state that could be arguments, by id.

    A program serves all functions with the code of those of the trace, but `is`, `==`, `in` and
    keys tell the state's own from others. So no others may take their places either.
    """
    codes = {_code_of(leaf) for leaf in leaves if type(leaf) in _FUNCTIONS}
    if not codes:
        return {}
    rows = state.snapshot.rows.values()
    held = (one for row in rows for item in row.before.items() for one in item)
    found = {id(one): one for one in held if type(one) in _FUNCTIONS and _code_of(one) in codes}
    state.keep(found.values())
    return found


def _code_of(function: Any) -> Any:
    return function.__code__ if type(function) is FunctionType else type(function)


def _distinct_objects(snapshot: Snapshot, given: object, spec: object) -> Distinct | None:
    """Returns a check that flattened objects do not belong to the state; None if there are none."""
    if not isinstance(spec, Structure) or given is None:
        return None
    distinct = Distinct(spec.opened, snapshot.known)
    closed = spec.opened if snapshot.asks_identity else distinct.shared(given)
    if snapshot.compares_objects:  # `is` distinguishes even equal functions
        closed = closed | spec.opened.intersection(CALLED)
    if closed:
        raise Restructure(closed=closed)
    return distinct
