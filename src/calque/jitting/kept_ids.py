"""Ids of arguments that code looks up in the state, or keeps there (`id(x) in self.seen`).

The tensors and containers of each call have other ids. As long as no number in the state is one of
them, a program serves all of them: what it does with the ids in the call itself tells which
arguments are the same, and that is guarded in any case.
"""

import re
from collections.abc import Collection, Container, Iterable, Iterator
from typing import Any

from calque.jitting.python_effects import PythonState
from calque.jitting.state_arguments import Overlap, Steps, containers, overlapping
from calque.state import MISSING, Snapshot
from calque.state.contents import elements_of
from calque.state.values import SCALARS, instance_dict

_LEAST = 1 << 16
"""No object has a lower id."""
_DECIMAL = re.compile("[0-9]{5,20}")
_HEXADECIMAL = re.compile("[0-9a-fA-F]{5,16}")


class KeptIds:
    """Guards that no argument for whose id the function asks has an id that the state holds.

    Args:
        indexes: the arguments.
        places: the paths to containers among them.
        held: the large numbers in the state.
    """

    guarded = "ids of arguments"

    def __init__(self, indexes: list[int], places: Collection[Steps], held: frozenset[int]) -> None:
        self._indexes = indexes
        self._places = places
        self._held = held

    def holds_for(self, leaves: list[Any], given: object) -> bool:
        """Returns True if the state holds none of the ids."""
        if any(id(leaves[index]) in self._held for index in self._indexes):
            return False
        return not (self._places and overlapping(given, self._held))

    def why(self) -> str:
        """Returns what differs."""
        return "the state holds the id of an argument"


def kept_ids(
    state: PythonState,
    leaves: list[Any],
    stand_ins: list[Any],
    given: object,
    own: Collection[Steps],
    returned: Iterable[Any],
) -> KeptIds | None:
    """Returns the guard, before the changes of the state are undone; None if none is needed.

    Notes that the program cannot be repeated if the function keeps or finds such an id.

    Args:
        leaves: the arguments.
        stand_ins: what the function gets in place of them.
        given: the call's (args, kwargs), if they are known.
        own: the paths to containers that the function gets as they are.
        returned: what it returns.

    Raises:
        Overlap: the function has to get more containers as they are.
    """
    snapshot = state.snapshot
    if not snapshot.asks_identity:
        return None
    asked = [i for i, one in enumerate(leaves) if snapshot.identifies((one, stand_ins[i]))]
    passed = {} if given is None else dict(containers(given))
    rebuilt = _rebuilt(state, passed)
    if not asked and not rebuilt:
        return None
    held, places = frozenset(_numbers(_held(snapshot), {})), frozenset(rebuilt.values())
    new = (v for row, now in snapshot.changed() for v in _new(row.before, now))
    kept = held.union(_numbers((*new, *returned), snapshot.known))
    found = {steps for key, steps in rebuilt.items() if key in kept or id(passed[steps]) in held}
    if not found <= frozenset(own):
        raise Overlap(found)
    if any(id(one) in kept for i in asked for one in (leaves[i], stand_ins[i])):
        state.unrepeatable.append("the id of an argument is in the state or the result")
    return KeptIds(asked, places, held)


def look_for_kept(state: PythonState, given: object, own: Collection[Steps]) -> None:
    """Check, where the function has raised an error, that it is not because it got containers anew.

    Raises:
        Overlap: the state holds the ids of containers for whose ids the function asks.
    """
    if given is None or not state.snapshot.asks_identity:
        return
    passed = dict(containers(given))
    if rebuilt := _rebuilt(state, passed):
        held = frozenset(_numbers(_held(state.snapshot), {}))
        found = {steps for steps in rebuilt.values() if id(passed[steps]) in held}
        if not found <= frozenset(own):
            raise Overlap(found)


def _rebuilt(state: PythonState, passed: Container[Steps]) -> dict[int, Steps]:
    """Returns the paths to containers that the function gets anew and asks for the ids of, by id.

    Args:
        passed: the paths to the call's own containers.
    """
    rebuilt = {key: steps for key, steps in state.given.items() if steps in passed}
    return {k: steps for k, steps in rebuilt.items() if state.snapshot.has_identified(k)}


def _held(snapshot: Snapshot) -> Iterator[Any]:
    for row in snapshot.rows.values():
        yield from row.before
        yield from row.before.values()


def _new(before: dict[Any, Any], now: dict[Any, Any]) -> Iterator[Any]:
    for key, value in now.items():
        if key not in before:
            yield key
        if value is not before.get(key, MISSING):
            yield value


def _numbers(values: Iterable[Any], known: dict[int, Any]) -> Iterator[int]:
    """Yields the large numbers in values, and in what these hold unless that is known.

    The sign does not matter, and numbers in text are found, too.
    """
    stack, seen = list(values), set[int]()
    while stack:
        value = stack.pop()
        if type(value) is int or (type(value) is float and value.is_integer()):
            if abs(value) >= _LEAST:
                yield abs(int(value))
        elif type(value) is str:
            yield from _written(value)
        elif type(value) not in SCALARS and id(value) not in seen and id(value) not in known:
            seen.add(id(value))
            if isinstance(value, dict):
                stack += [*dict.keys(value), *dict.values(value)]
            elif isinstance(value, list | tuple | set | frozenset):
                stack += elements_of(value)
            elif known and (held := instance_dict(value)) is not None:
                stack += held.values()


def _written(text: str) -> Iterator[int]:
    """Yields the large numbers in a text, decimal and hexadecimal.

    >>> list(_written("tensor 123456, 0x1e240"))
    [123456, 1193046, 123456]
    """
    yield from map(int, _DECIMAL.findall(text))
    for digits in _HEXADECIMAL.findall(text):
        yield int(digits, 16)
