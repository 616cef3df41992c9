"""Refuses operators that change the geometry of a tensor from outside of a trace, and guards that
the state's tensors on the CPU keep theirs.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from calque.device.memory.cell import view_of
from calque.device.memory.wrapping import set_geometry
from calque.errors import unrepeatable


def regeometry(func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """Run an operator, which must not change its tensor's geometry."""
    with same_geometry(func, args[:1]):
        func(*args, **kwargs)
    return args[0]


@contextmanager
def same_geometry(func: Any, tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """A context manager in which an operator runs that must not change the tensors' geometry."""
    known = [(tensor, view_of(tensor)) for tensor in tensors if tensor.device.type == "jax"]
    yield
    for tensor, before in known:
        if (after := view_of(tensor)) == before:
            continue
        set_geometry(tensor, before)
        raise unrepeatable(
            f"{func} changes the geometry of a tensor {described(tensor)} from outside to shape "
            f"{after.size},",
            "which the compiled program could not repeat",
            "Use a view instead (`x.t()` for `x.t_()`), give `out=` the shape of "
            "the result, or change the tensor before the call.",
        )


def described(tensor: torch.Tensor) -> str:
    """Returns the shape and dtype of a tensor, for an error."""
    return f"of shape {tuple(tensor.shape)} and dtype {tensor.dtype}"


class KeptTensors:
    """Guards that CPU tensors of the state have the same storages, geometry and `requires_grad`.

    Args:
        rows: the tensors, each with what must be the same (see `kept_of`).
    """

    guarded = "storages of CPU tensors of the state"

    def __init__(self, rows: Iterable[tuple[torch.Tensor, Any]]) -> None:
        self._rows = list(rows)

    def holds_for(self, leaves: list[Any], given: object) -> bool:
        """Returns True if every tensor is the same."""
        return all(kept_of(tensor) == known for tensor, known in self._rows)

    def why(self) -> str:
        """Returns what differs."""
        return (
            "a CPU tensor has other data, another geometry (`.data = `, `resize_`) or another "
            "`requires_grad`"
        )


def kept_of(tensor: torch.Tensor) -> Any:
    """Returns what must be the same; storages are compared by identity."""
    if tensor.layout is not torch.strided:
        return tensor.layout, tensor.dtype, tensor.shape, tensor.requires_grad
    view = tensor.storage_offset(), tensor.shape, tensor.stride()
    return tensor.untyped_storage(), tensor.dtype, *view, tensor.requires_grad
