"""Parts of complex tensors that a program writes to while gradients are recorded.

A write into a part has the form `select_scatter` or `slice_scatter`, for which PyTorch has no
gradient with complex numbers. So the part is taken from the pairs of real numbers.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.graph import Graph

from calque.tracing.lowering.unseen_writes import written_by

_DIMS = {"select": 1, "narrow": 1, "unbind": 1, "split": 2, "chunk": 2, "tensor_split": 2}
"""The position of the dimension among the arguments of functions that return parts."""


def writes_complex(graph: Graph) -> bool:
    """Returns True if a program may write to a complex tensor."""
    written = (each.meta.get("val") for node in graph.nodes for each in written_by(node))
    return any(isinstance(value, Tensor) and value.is_complex() for value in written)


def of_pairs(
    function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Returns what a call returns that takes parts of a complex tensor or writes to one, as parts
    of the pairs of real numbers; NotImplemented for other calls.
    """
    x = args[0] if args else None
    if not isinstance(x, Tensor) or not x.is_complex() or x.is_conj():
        return NotImplemented
    if name == "zero_":  # whose form has no gradient either
        return x.fill_(0)
    if name in ("__getitem__", "__setitem__"):
        keys = args[1] if isinstance(args[1], tuple) else (args[1],)
        if any(type(part) not in (int, slice, type(None), type(...)) for part in keys):
            return NotImplemented
        keys = (*keys, slice(None)) if ... in keys else keys
        part = torch.view_as_complex(torch.view_as_real(x)[keys])
        return part if name == "__getitem__" else _written(part, args[2])
    if name not in _DIMS:
        return NotImplemented
    given, named = [torch.view_as_real(x), *args[1:]], dict(kwargs)
    where: Any = given if len(given) > _DIMS[name] else named
    place: Any = _DIMS[name] if where is given else "dim"
    if where is given or "dim" in named:
        where[place] = where[place] % x.dim()  # of the complex tensor
    found = function(*given, **named)
    parts = tuple if isinstance(found, (tuple, list)) else None
    return parts(map(torch.view_as_complex, found)) if parts else torch.view_as_complex(found)


def _written(part: Tensor, value: Any) -> None:
    if not isinstance(value, Tensor):
        part.fill_(value)
        return
    while value.dim() > part.dim() and value.shape[0] == 1:  # as PyTorch does
        value = value[0]
    part.copy_(value)
