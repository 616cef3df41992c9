"""Refuses operators that change the geometry of a tensor from outside of a trace."""

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
