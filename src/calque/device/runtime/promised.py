"""Placements of tensors that have no memory yet.

A model made on "meta" can be spread before it has values: each tensor is promised a placement,
which it gets with its memory on the device. One of the CPU that takes its place is promised it too.
"""

from typing import Any

import torch
from jax.sharding import Sharding

_NAME = "_calque_promised"


def promise(tensor: torch.Tensor, placement: Sharding) -> None:
    """Have a tensor that is elsewhere get a placement as soon as it has memory on the device."""
    setattr(tensor, _NAME, placement)


def promised(tensor: torch.Tensor) -> Any:
    """Returns the placement that a tensor elsewhere was promised, or None."""
    return vars(tensor).get(_NAME) if tensor.device.type != "jax" else None


def take(tensor: torch.Tensor) -> Any:
    """Returns the placement that a tensor was promised, for who gives it now."""
    return vars(tensor).pop(_NAME, None)
