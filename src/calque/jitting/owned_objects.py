"""Finds what values hold, and the objects that belong to a result alone: nothing else refers to
them.
"""

import enum
import gc
import itertools
import sys
import types
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Collection, Iterator
from typing import Any

import torch
from jax.core import Tracer
from torch.nn import Module
from torch.optim import Optimizer

from calque.program.trace_collection import collect_new
from calque.state.plain import is_local, is_method, parts_of
from calque.state.values import ATOMIC, instance_dict, is_of_objects

ELSEWHERE = (
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
    *(types.CodeType, types.FrameType, types.TracebackType),
    *(torch.Tensor, torch.Size, torch.SymFloat, torch.SymInt, torch.SymBool, Tracer),
    *(Module, Optimizer),
    *(Iterator, Awaitable, AsyncIterator),  # which are refused
)
"""Classes of values that are described otherwise, or are the same in each call."""


def is_made_anew(value: Any) -> bool:
    """Returns True for a function or method that each call makes anew, if it is not known."""
    kind = type(value)
    if kind is types.BuiltinFunctionType:
        return is_method(value)
    return kind is types.MethodType or (kind is types.FunctionType and is_local(value))


def owned(
    leaves: list[Any], roots: list[Any], known: Collection[int]
) -> tuple[set[int], dict[int, Any]]:
    """Returns the ids of the objects that only some values hold, and all other objects that they
    hold, by id.

    Args:
        leaves: the only list that may hold the values.
        roots: the values.
        known: the ids of objects that something else holds.
    """
    nodes, inner, others = _reachable(roots, known)
    inner.update(map(id, leaves))
    roots.clear()
    if any(_is_held_elsewhere(nodes, key, inner) for key in nodes):
        collect_new()  # what a function has returned may have been part of a cycle
    suspects = {key for key in nodes if _is_held_elsewhere(nodes, key, inner)}
    rest = list(_held_by_others(nodes, suspects, leaves)) if suspects else []
    while rest:
        key = rest.pop()
        if key in nodes:
            others[key] = nodes.pop(key)
            rest += map(id, _parts_of(others[key]))
    return set(nodes), others


def held_by(
    values: list[Any], known: Collection[int] = (), attributes: bool = True
) -> Iterator[Any]:
    """Yields the objects that some values hold or are (see `owned`), the values first.

    Args:
        known: the ids of objects whose contents are not searched.
        attributes: whether the attributes of tensors are searched.
    """
    nodes, _, others = _reachable(values, known, attributes)
    return itertools.chain(nodes.values(), others.values())


def tensors_of(value: Any, known: Collection[int]) -> list[torch.Tensor]:
    """Returns the tensors that a value holds (see `owned`)."""
    nodes, _, _ = _reachable([value], known)
    parts = (part for node in nodes.values() for part in _parts_of(node))
    return [part for part in parts if isinstance(part, torch.Tensor)]


def _reachable(
    roots: list[Any], known: Collection[int], attributes: bool = True
) -> tuple[dict[int, Any], Counter[int], dict[int, Any]]:
    """Returns what values hold, by id, how often it holds each object, and the known objects."""
    nodes: dict[int, Any] = {}
    others: dict[int, Any] = {}
    inner: Counter[int] = Counter()
    rest = list(roots)
    tensors: dict[int, torch.Tensor] = {}
    while rest:
        value = rest.pop()
        kind = type(value)
        if id(value) in nodes or kind in ATOMIC:
            continue
        if issubclass(kind, ELSEWHERE) and not is_made_anew(value):
            if attributes and isinstance(value, torch.Tensor) and id(value) not in known:
                if vars(value) and id(value) not in tensors:
                    tensors[id(value)] = value
                    inner[id(vars(value))] += 1
                    rest.append(vars(value))
            continue
        if id(value) in known:
            others[id(value)] = value
            continue
        nodes[id(value)] = value
        held = _parts_of(value)
        inner.update(map(id, held))
        rest += held
    return nodes, inner, others


def _parts_of(value: Any) -> list[Any]:
    """Returns what a value refers to, without calling methods of its class."""
    if type(value) is types.FunctionType:
        return parts_of(value)
    return list(value.flat) if is_of_objects(value) else gc.get_referents(value)


def _is_held_elsewhere(nodes: dict[int, Any], key: int, inner: Counter[int]) -> bool:
    # One reference is that of the dict, and one that of the call.
    return sys.getrefcount(nodes[key]) - 2 > inner[key]


def _held_by_others(nodes: dict[int, Any], suspects: set[int], leaves: list[Any]) -> set[int]:
    """Returns the suspects to which something refers that is neither a node nor a running call."""
    found = {key for key in suspects if isinstance(nodes[key], tuple | frozenset)}  # constants
    values = [nodes[key] for key in suspects - found]
    if not values:
        return found
    ours = {id(leaves), id(values), id(nodes), *nodes}
    # An object's dict is not tracked by the collector, and not found by it, until it is asked for.
    ours.update(id(instance_dict(value)) for value in nodes.values())
    for holder in gc.get_referrers(*values):
        if id(holder) not in ours and not isinstance(holder, types.FrameType):
            found.update(suspects.intersection(map(id, gc.get_referents(holder))))
    return found


def is_made_key(key: Any, known: Collection[int]) -> bool:
    """Returns True if the key of a dict is an object that the function has created."""
    if type(key) in ATOMIC or id(key) in known or isinstance(key, enum.Enum):
        return False
    if isinstance(key, torch.Tensor):
        return True
    return not is_whole(key) and instance_dict(key) is not None


def is_whole(leaf: Any) -> bool:
    """Returns True if a value holds no other objects."""
    return type(leaf) in ATOMIC or issubclass(type(leaf), ELSEWHERE)
