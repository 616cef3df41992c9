"""Placements for tensors that have no memory yet.

A model on "meta" can be sharded before it has values: each tensor is assigned a placement, which
takes effect when it gets memory on the device. A CPU tensor that replaces it keeps the assignment.
"""

from typing import Any

import torch
from jax.sharding import Sharding

_NAME = "_calque_pending_placement"


def set_pending(tensor: torch.Tensor, placement: Sharding) -> None:
    """Assign a tensor a placement that takes effect when it gets memory on the device."""
    setattr(tensor, _NAME, placement)


def pending(tensor: torch.Tensor) -> Any:
    """Returns the pending placement of a tensor, or None."""
    return vars(tensor).get(_NAME) if tensor.device.type != "jax" else None


def take_pending(tensor: torch.Tensor) -> Any:
    """Returns and removes the pending placement of a tensor."""
    return vars(tensor).pop(_NAME, None)
