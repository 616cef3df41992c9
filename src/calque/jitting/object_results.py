"""Objects in the result of a traced function that are not registered containers.

An example is a cache of keys and values: an object of a user's or library's class, created in the
trace, that holds tensors. Each call creates the object again, and what the function has put into
it, with the tensors of that call.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from calque.jitting.owned_objects import ELSEWHERE, is_made_anew, owned, tensors_of
from calque.program.structures import can_open
from calque.state.created_classes import is_created_again
from calque.state.plain import closes_over_new, is_local, tells_its_end
from calque.state.values import ATOMIC, instance_dict, is_of_objects

_FILLED = (bytearray,)
"""Classes of values that hold no objects, but may change."""
_HOLDS_OBJECTS = 1 << 14
"""The flag of classes whose objects may refer to others (`Py_TPFLAGS_HAVE_GC`)."""


def opened(
    leaves: list[Any],
    given: Mapping[int, Any] | set[int],
    known: Mapping[int, Any],
    is_fresh: Callable[[Any], bool],
) -> tuple[set[int], dict[int, Any]]:
    """Returns the ids of the objects among a list of leaves that each call creates again, and other
    objects that these hold, and that are the same in each call, by id.

    An object is created again if the function has created it, and only the list refers to it. Other
    objects keep their identity, and are not copied.

    Args:
        leaves: the list.
        given: the ids of the call's containers and of objects that the function also stores.
        known: the objects that existed before, by id.
        is_fresh: returns True for a tensor that was created in the trace.
    """
    found = [i for i, leaf in enumerate(leaves) if id(leaf) not in given and _is_object(leaf)]
    found = [i for i in found if id(leaves[i]) not in known]
    classes = {id(leaf) for leaf in leaves if is_created_again(leaf, known)}
    if not found:
        return classes, {}
    outside = {*given, *known}
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and vars(leaf)]
    mine, others = owned(leaves, [*tensors, *(leaves[i] for i in found)], outside)
    tensors.clear()
    same = {key: value for key, value in others.items() if key not in given}
    for key in [key for key in same if key not in known]:
        if any(map(is_fresh, tensors_of(same[key], outside))):
            del same[key]  # what the trace has computed differs in each call
    return classes.union(id(leaves[i]) for i in found if id(leaves[i]) in mine), same


def _is_object(value: object) -> bool:
    kind = type(value)
    if kind in ATOMIC or not _may_change(value):
        return False
    if issubclass(kind, ELSEWHERE) and not is_made_anew(value):
        return False
    return not (isinstance(value, tuple) and not value) and not tells_its_end(value)


def _may_change(value: Any) -> bool:
    kind = type(value)
    if kind.__flags__ & _HOLDS_OBJECTS or issubclass(kind, _FILLED):
        return True
    return is_of_objects(value)


def classes_created_again(leaves: Iterable[Any], known: Mapping[int, Any]) -> set[int]:
    """Returns the ids of the returned classes that each call creates again."""
    return {id(one) for one in leaves if is_created_again(one, known)}


def ending(leaves: Iterable[Any], known: Mapping[int, Any]) -> list[str]:
    """Returns why a function is traced at each call that returns objects which tell their end, or
    functions with variables of their own.
    """
    found = [one for one in leaves if id(one) not in known and hasattr(one, "__dict__")]
    reasons = [
        f"the function {one.__qualname__} is returned, which closes over an object made in the call"
        for one in found
        if closes_over_new(one, known)
    ]
    return reasons + [
        f"a {type(one).__name__} is returned, whose end is noticed by code"
        for one in found
        if not isinstance(one, ELSEWHERE) and tells_its_end(one)
    ]


def of_new_classes(values: Iterable[Any], known: Mapping[int, Any]) -> list[str]:
    """Returns why a function is traced at each call that returns classes, or objects of them, that
    it has created and that cannot be created again.
    """
    found = [one for one in values if id(one) not in known and hasattr(one, "__dict__")]
    return [
        f"the class {kind.__qualname__} is returned, which cannot be created again in each call"
        for kind in (one if isinstance(one, type) else type(one) for one in found)
        if id(kind) not in known and is_local(kind) and not is_created_again(kind, known)
    ]


def classes_among(values: Iterable[Any]) -> dict[int, type]:
    """Returns the local classes of objects, tuples and containers, at any depth, by id."""
    found: dict[int, type] = {}
    seen: set[int] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        kind = type(value)
        if kind in ATOMIC or id(value) in seen:
            continue
        seen.add(id(value))
        found.update((id(one), one) for one in kind.__mro__ if is_local(one))
        base = next((one for one in (tuple, list, deque) if issubclass(kind, one)), None)
        if issubclass(kind, dict):
            stack += dict.values(value)
        elif base is not None:
            stack += base.__iter__(value)  # not a method of the user's class
        elif can_open(kind):
            stack += (instance_dict(value) or {}).values()
    return found
