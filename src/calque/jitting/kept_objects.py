"""Objects and containers of the state that each call returns or stores, as the trace found them."""

import gc
from collections.abc import Container, Iterable
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from jax.core import Tracer

from calque.jitting.owned_objects import held_by
from calque.program import trees
from calque.state import ATOMIC
from calque.state.contents import nested

_ELSEWHERE = (
    *(torch.Tensor, torch.SymFloat, torch.SymInt, torch.SymBool, Tracer),
    *(type, ModuleType, CodeType, FrameType),
)


def kept_objects(values: Iterable[Any], known: Container[int]) -> set[int]:
    """Returns the ids of the known objects among some values, and of those to which values refer
    that the trace has created.

    Args:
        values: what each call returns or stores.
        known: the ids of the objects that existed before.
    """
    found: set[int] = set()
    seen: dict[int, Any] = {}
    stack = list(values)
    while stack:
        value = stack.pop()
        kind = type(value)  # `isinstance` could run user code for `__class__`
        if kind in ATOMIC or id(value) in seen or issubclass(kind, _ELSEWHERE):
            continue
        seen[id(value)] = value
        if id(value) in known:
            found.add(id(value))
        elif kind is FunctionType:
            stack += (value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value))
        else:
            stack += gc.get_referents(value)
    return found


def containers_of_tensors(values: Iterable[Any]) -> set[int]:
    """Returns the ids of the containers in those values that hold only tensors and plain values."""
    held = held_by([value for value in values if trees.tensors_in(value) is not None])
    return {id(one) for one in held if not isinstance(one, torch.Tensor)}


def is_or_holds(value: object, given: Container[int]) -> bool:
    """Returns True if a value is, or holds, a container from the call's arguments.

    Args:
        given: the ids of these containers.
    """
    kinds = dict | list | tuple
    return any(id(one) in given for one in nested(value) if isinstance(one, kinds))
