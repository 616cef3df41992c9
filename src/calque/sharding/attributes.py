"""Attributes of `torch.Tensor` that only placed tensors have."""

from collections.abc import Callable
from typing import Any

import torch


class OfPlaced:
    """An attribute that only some tensors have, also according to `hasattr`.

    A value that a user sets under this name takes precedence.

    Args:
        name: the name of the attribute.
        get: returns its value for a tensor on the device "jax"; None if the tensor has none.
    """

    def __init__(self, name: str, get: Callable[[torch.Tensor], Any]) -> None:
        self.name: str = name
        self.get: Callable[[torch.Tensor], Any] = get

    def __get__(self, tensor: torch.Tensor | None, owner: type) -> Any:
        if tensor is None:
            return self
        if self.name in tensor.__dict__:
            return tensor.__dict__[self.name]
        found = self.get(tensor) if tensor.device.type == "jax" else None
        if found is None:
            raise AttributeError(f"{owner.__name__!r} object has no attribute {self.name!r}")
        return found

    def __set__(self, tensor: torch.Tensor, value: object) -> None:
        vars(tensor)[self.name] = value

    def __delete__(self, tensor: torch.Tensor) -> None:
        if self.name not in tensor.__dict__:
            raise AttributeError(self.name)
        del vars(tensor)[self.name]
