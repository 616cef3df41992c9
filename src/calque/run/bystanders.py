"""Objects of libraries that a function holds: what an abandoned trace left in them is taken back.

A scaler of losses or a cache of keys and values is no part of a program's state: a call that puts
tensors into it is traced each time. But a trace that fails must not leave its tensors there.
"""

from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

import torch

_DEPTH = 4
_MOST = 10_000
_OPAQUE = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, type, FunctionType, ModuleType)


class Bystanders:
    """The containers in some objects, as they are now."""

    def __init__(self, objects: Iterable[Any]) -> None:
        self._dicts: dict[int, tuple[dict[Any, Any], dict[Any, Any]]] = {}
        self._lists: dict[int, tuple[list[Any], list[Any]]] = {}
        for one in objects:
            self._look(one, _DEPTH)

    def _look(self, value: Any, depth: int) -> None:
        if depth < 0 or isinstance(value, _OPAQUE) or len(self._dicts) > _MOST:
            return
        if isinstance(value, list):
            if id(value) not in self._lists:
                self._lists[id(value)] = value, list(value)
                for item in value[:_MOST]:
                    self._look(item, depth - 1)
            return
        inner = value if isinstance(value, dict) else getattr(value, "__dict__", None)
        if isinstance(inner, dict) and id(inner) not in self._dicts:
            self._dicts[id(inner)] = inner, dict(inner)
            for item in list(inner.values())[:_MOST]:
                self._look(item, depth - 1)

    def restore(self) -> None:
        """Put back what was in them."""
        for now, before in self._lists.values():
            if len(now) != len(before) or any(a is not b for a, b in zip(now, before)):
                now[:] = before
        for now, before in self._dicts.values():
            if now.keys() != before.keys() or any(now[k] is not v for k, v in before.items()):
                now.clear()
                now.update(before)

    def forget(self) -> None:
        """Nothing is to be put back any more."""
        self._lists.clear()
        self._dicts.clear()
