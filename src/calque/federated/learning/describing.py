"""What decides the numbers of a run, in words that are the same in another process."""

import dataclasses
import re
from collections.abc import Mapping
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch

_DEPTH = 6
"""How far functions are followed to what they close over."""

_MOST = 32
"""How many parts of a container are described."""


def described(value: Any, depth: int = _DEPTH) -> str:
    """A setting in words: numbers, modules, optimizers, functions and what they close over.

    >>> described({"rate": 0.1}), described(torch.nn.Linear(2, 3))
    ('{rate: 0.1}', 'Linear(in_features=2, out_features=3, bias=True)')
    """
    if value is None or isinstance(value, bool | int | float | str | torch.nn.Module):
        return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    if np.shape(value) == () and isinstance(value, np.generic | np.ndarray | torch.Tensor):
        return repr(value.item())
    name = type(value).__name__
    if depth == 0:
        return name
    if isinstance(value, Mapping):
        return _named("", value, depth, "{}")
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _named(name, value._asdict(), depth)
    if isinstance(value, list | tuple):
        parts = [described(one, depth - 1) for one in value[:_MOST]]
        return f"[{', '.join(parts)}] of {len(value)}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        return _named(name, fields, depth)
    if isinstance(value, MethodType):
        return f"{described(value.__self__, depth - 1)}.{value.__name__}"
    if isinstance(value, FunctionType):
        return _named(value.__qualname__, _closed_over(value), depth)
    return getattr(value, "__qualname__", name)


def _named(name: str, parts: Mapping[Any, Any], depth: int, brackets: str = "()") -> str:
    some = list(parts.items())[:_MOST]
    texts = [f"{part}: {described(value, depth - 1)}" for part, value in some]
    return f"{name}{brackets[0]}{', '.join(texts)}{brackets[1]}"


def _closed_over(function: FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # nothing has been assigned yet
            continue
    return found
