"""Objects in the result of a traced function that are not registered containers.

An example is a cache of keys and values: an object of a user's or library's class, created in the
trace, that holds tensors. Its tensors become results of the program, and each call returns a copy
of the object with the tensors of that call.
"""

import copy
import gc
import types
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from jax.core import Tracer
from torch.nn import Module
from torch.optim import Optimizer

from calque.program.trace_collection import collect_new
from calque.state.plain import copied, tells_its_end

_DEPTH = 12
_WHOLE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.CodeType)
_UNCOPIED = (Module, Optimizer)


class _Place:
    """The position of a tensor."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class _Shared:
    """A list, dict or set without tensors that is also referenced elsewhere, and so is not
    copied.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class ObjectResults:
    """The objects among the leaves of a result; see `opened`."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, Any]] = []

    def closed(self, results: list[Any]) -> list[Any]:
        """Returns the leaves of a call's result, given those of the opened result."""
        given = iter(results)
        leaves: list[Any] = []
        for count, shell in self.rows:
            tensors = [next(given) for _ in range(count)]
            leaves.append(tensors[0] if shell is None else _filled(shell, tensors))
        return leaves


def opened(
    leaves: list[Any], is_fresh: Callable[[Any], bool], given: Collection[int]
) -> ObjectResults | None:
    """Replace the objects in a list of leaves with their tensors; returns None if there are no
    objects.

    An object is opened if only the list refers to it, and one of its tensors was created in the
    trace. Other objects keep their identity, and are not copied. Containers of the call's
    arguments, whose ids are in `given`, are treated like tensors.
    """
    objects, opened, found = ObjectResults(), [], False
    for leaf in leaves:
        tensors = _tensors(leaf, given) if _is_object(leaf) and id(leaf) not in given else {}
        made = any(isinstance(one, Tracer) or is_fresh(one) for one in tensors.values())
        if made and _is_held_by(leaf, leaves):
            places = {key: _Place(index) for index, key in enumerate(tensors)}
            shell = _rebuilt(leaf, lambda t, to=places: to[id(t)], _copied_if_alone, places)
            objects.rows.append((len(tensors), shell))
            opened += tensors.values()
            found = True
        else:
            objects.rows.append((1, None))
            opened.append(leaf)
    if found:
        leaves[:] = opened
    return objects if found else None


def _is_object(value: object) -> bool:
    if isinstance(value, (torch.Tensor, *_WHOLE, *_UNCOPIED)) or not hasattr(value, "__dict__"):
        return False
    return not tells_its_end(value)


def ending(leaves: Iterable[Any], known: Collection[int]) -> list[str]:
    """Returns why a function is traced at each call that returns objects which tell their end."""
    found = (one for one in leaves if id(one) not in known and hasattr(one, "__dict__"))
    return [
        f"a {type(one).__name__} is returned, whose end is noticed by code"
        for one in found
        if not isinstance(one, (torch.Tensor, *_WHOLE, *_UNCOPIED)) and tells_its_end(one)
    ]


def _is_held_by(value: object, leaves: list[Any]) -> bool:
    if _others(value, leaves):
        collect_new()  # the container it was returned in may be part of a cycle
    return not _others(value, leaves)


def _others(value: object, leaves: list[Any]) -> bool:
    """Returns True if anything other than the list and running calls refers to the object."""
    holders = gc.get_referrers(value)
    return any(h is not leaves and not isinstance(h, types.FrameType) for h in holders)


def _filled(shell: object, tensors: list[Any]) -> Any:
    return _rebuilt(shell, lambda place: tensors[place.index], _copied)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, _WHOLE):
        return []
    parts: list[Any] = []
    if isinstance(value, dict):
        parts += value.values()
    elif isinstance(value, list | tuple | set):
        parts += value
    return [*parts, *getattr(value, "__dict__", {}).values()]


def _tensors(value: object, given: Collection[int]) -> dict[int, Any]:
    """Returns the tensors and tracers in an object, by id; none if it must not be copied."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    rest = [(value, _DEPTH)]
    while rest:
        item, depth = rest.pop()
        if isinstance(item, _UNCOPIED):
            return {}
        if isinstance(item, torch.Tensor | Tracer) or id(item) in given:
            found[id(item)] = item
        elif id(item) not in seen and depth:
            seen.add(id(item))
            rest += [(part, depth - 1) for part in _parts(item)]
    return found


def _rebuilt(
    value: object,
    swap: Callable[[Any], Any],
    plain: Callable[[Any, Collection[Any]], Any],
    parts: Collection[int] = (),
) -> Any:
    """Returns a copy of an object and its parts, in which its tensors (or places) are replaced by
    `swap`.

    Parts without tensors are passed to `plain`, with the copies made so far.
    """
    made: dict[int, Any] = {}
    kept: list[Any] = []  # keeps ids unique

    def visit(item: object, depth: int) -> Any:
        if isinstance(item, torch.Tensor | _Place) or id(item) in parts:
            return swap(item)
        if isinstance(item, _Shared):
            return item.value
        if id(item) in made:
            return made[id(item)]
        if not _reaches(item, depth, parts):
            return plain(item, made.values())
        kept.append(item)
        if isinstance(item, tuple):
            items = [visit(part, depth - 1) for part in item]
            new = type(item)(*items) if hasattr(item, "_fields") else tuple(items)
            made[id(item)] = new
            return new
        new = made[id(item)] = copied(item)
        if isinstance(item, dict):
            for key in list(item):  # items() would hold references to the parts
                new[key] = visit(item[key], depth - 1)
        elif isinstance(item, list):
            new[:] = [visit(part, depth - 1) for part in item]
        elif isinstance(item, set):
            new.clear()
            new.update(visit(part, depth - 1) for part in item)
        attributes = getattr(item, "__dict__", {})
        for name in list(attributes):
            new.__dict__[name] = visit(attributes[name], depth - 1)
        return new

    return visit(value, _DEPTH)


def _copied(value: object, copies: Collection[Any]) -> Any:
    return copy.copy(value) if type(value) in (list, dict, set) else value


def _copied_if_alone(value: object, copies: Collection[Any]) -> Any:
    if type(value) not in (list, dict, set):
        return value
    ours = {id(holder) for copy in copies for holder in (copy, getattr(copy, "__dict__", None))}
    others = [h for h in gc.get_referrers(value) if id(h) not in ours]
    holders = [h for h in others if not isinstance(h, types.FrameType)]
    return _Shared(value) if len(holders) > 1 else copy.copy(value)


def _reaches(value: object, depth: int, parts: Collection[int] = ()) -> bool:
    """Returns True if an object holds a tensor or a place, or must be searched in each copy."""
    seen: set[int] = set()
    rest = [(value, depth)]
    while rest:
        item, depth = rest.pop()
        if isinstance(item, torch.Tensor | _Place | _Shared) or id(item) in parts:
            return True
        if id(item) not in seen and depth:
            seen.add(id(item))
            rest += [(part, depth - 1) for part in _parts(item)]
    return False
