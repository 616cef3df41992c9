"""Objects and containers of the state that each call returns or stores, as the trace found them."""

import gc
from collections.abc import Container, Iterable
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from jax.core import Tracer

from calque.jitting.owned_objects import held_by
from calque.program import trees
from calque.state import ATOMIC, MISSING, Row
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


class LeftContainers:
    """The containers of tensors that variables held before the function replaced them.

    In the next call the variable holds others. If the function stores or returns a tuple that was
    left, each call creates it from the tensors that it finds in the variable. A list may also be
    referenced from outside, so that it has to be the same object: if it is stored elsewhere or
    returned, the function is traced at each call.

    Attributes:
        moving: the ids of the tuples.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self.moving: set[int] = set()

    def look(self, row: Row, now: dict[Any, Any], known: Container[int]) -> None:
        """Find what the variables of a row no longer hold.

        Args:
            row: the row.
            now: its items after the function has run.
            known: the ids of the objects that existed before.
        """
        for key, old in row.before.items():
            if old is now.get(key, MISSING):
                continue
            found = _containers_of_tensors(old)
            lists = [place for place, one in found.items() if not isinstance(one, tuple)]
            new = _containers_of_tensors(now.get(key, MISSING))
            if not lists:
                self.moving |= found.keys()
            elif not any(one in known for one in new):
                # Otherwise the variable is compared: it holds the same in each call.
                self._names.update(dict.fromkeys(lists, row.name(key)))

    def stored(self, kept: set[int]) -> list[str]:
        """Returns why no other call can do the same, given what each call stores or returns."""
        names = dict.fromkeys(self._names[key] for key in kept & self._names.keys())
        return [f"what {name} held is stored elsewhere or returned" for name in names]


def _containers_of_tensors(value: object) -> dict[int, Any]:
    """Returns the containers in a value by id, if it holds only tensors and plain values."""
    held = held_by([value]) if trees.tensors_in(value) is not None else ()
    return {id(one): one for one in held if not isinstance(one, torch.Tensor)}


def is_or_holds(value: object, given: Container[int]) -> bool:
    """Returns True if a value is, or holds, a container from the call's arguments.

    Args:
        given: the ids of these containers.
    """
    kinds = dict | list | tuple
    return any(id(one) in given for one in nested(value) if isinstance(one, kinds))
