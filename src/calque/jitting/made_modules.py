"""Modules and optimizers that a traced function creates and returns, which each call creates
again.
"""

import gc
import types
import weakref
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from calque.errors import TraceError
from calque.program.trace_collection import collect_new
from calque.state.contents import elements_of, items_of
from calque.state.values import instance_dict

_WHOLE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.CodeType)


class _Content:
    """The contents of a value.

    Args:
        value: the value.
        known: objects that are not searched, by id.

    Attributes:
        tensors: the tensors.
        containers: the ids of the objects and dicts that contain something.
        has_modules: whether modules or optimizers are among them.
    """

    def __init__(self, value: Any, known: Collection[int] = ()) -> None:
        self.tensors: list[torch.Tensor] = []
        self.containers: set[int] = set()
        self.has_modules: bool = False
        rest = [value]
        while rest:
            item = rest.pop()
            if isinstance(item, torch.Tensor):
                self.tensors.append(item)
            elif not isinstance(item, _WHOLE) and id(item) not in self.containers:
                self.has_modules |= isinstance(item, Module | Optimizer)
                if id(item) not in known:
                    self.containers.add(id(item))
                    rest += self._held_by(item)

    def _held_by(self, item: object) -> list[Any]:
        held: list[Any] = []
        if isinstance(item, dict):
            held += (part for pair in items_of(item) for part in pair)
        elif isinstance(item, list | tuple | set):
            held += elements_of(item)
        attributes = instance_dict(item)
        if attributes is not None:
            self.containers.add(id(attributes))
            held += attributes.values()
        return held


def made_here(
    leaves: Iterable[Any],
    known: Collection[int],
    outside: Collection[int],
) -> set[int]:
    """Returns the ids of objects with modules in a result that each call can create again.

    The function has created them, and only they themselves and the program's state refer to them.

    Args:
        leaves: the leaves of the result.
        known: all objects that existed before the trace, by id.
        outside: the ids of the containers of the state.
    """
    found: list[Any] = []
    ours = set(outside)
    for leaf in leaves:
        if id(leaf) not in known and not isinstance(leaf, torch.Tensor):
            holds = isinstance(leaf, list | tuple | dict) or instance_dict(leaf) is not None
            content = _Content(leaf, known) if holds else None
            if content is not None and content.has_modules:
                found.append(leaf)
                ours |= content.containers
    return {id(leaf) for leaf in found if not _is_held_elsewhere(leaf, ours)}


def _is_held_elsewhere(value: object, ours: Collection[int]) -> bool:
    if _others(value, ours):
        collect_new()  # its container may be part of a reference cycle
    return bool(_others(value, ours))


def _others(value: object, ours: Collection[int]) -> list[Any]:
    return [
        one
        for one in gc.get_referrers(value)
        if id(one) not in ours and not (_is_of_a_call(one) or _is_of_a_cell(one))
    ]


def _is_of_a_call(holder: object) -> bool:
    return isinstance(holder, list | types.FrameType)


def _is_of_a_cell(holder: object) -> bool:
    """Returns True if the holder belongs only to a variable of a running call."""
    return isinstance(holder, types.CellType) and all(map(_is_of_a_call, gc.get_referrers(holder)))


def check_gradients_reach(
    leaves: Iterable[weakref.ref[torch.Tensor]], results: Iterable[Any], place: str
) -> None:
    """Check that leaves to which no gradient will flow are not in the function's results.

    Args:
        leaves: leaves created in the trace that end with it if nothing refers to them.
        results: the values that each call returns unchanged.
        place: the function's line, as the beginning of a message.

    Raises:
        TraceError: one of them is in the results.
    """
    alive = {id(leaf): leaf for ref in leaves if (leaf := ref()) is not None}
    for value in results if alive else ():
        leaf = next((t for t in _Content(value).tensors if id(t) in alive), None)
        if leaf is not None:
            kind = type(value).__name__
            raise TraceError(
                f"{place}a tensor of shape {tuple(leaf.shape)} that requires a gradient is made in "
                f"the function, and returned in a {kind} that calque.jit cannot make anew at each "
                f"call, so that it would get no gradient.\nMake the {kind} outside of the jitted "
                "function."
            )
