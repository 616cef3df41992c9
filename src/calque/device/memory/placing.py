"""The placements of tensors."""

import torch
from jax.sharding import Sharding

from calque.device.memory.cell import active, cell_of, layout_of
from calque.device.runtime.placement import placement_of, spread
from calque.upstream import torch_c

_is_wrapped = torch_c.functorch.is_functorch_wrapped_tensor


def placement_like(tensor: torch.Tensor) -> Sharding | None:
    """Returns the placement for tensors that are created like this one.

    Returns None if the tensor is a part of a storage or has a different axis order, if it is on
    another device, and for tensors of `torch.func` transforms.
    """
    if not spread.exists or _is_wrapped(tensor):
        return None
    cell = getattr(tensor.untyped_storage(), "cell", None) if tensor.device.type == "jax" else None
    if cell is None:
        return None
    if tensor.shape != cell.array.shape or tensor.storage_offset():
        return None
    if tensor.stride() != layout_of(cell).stride:
        return None
    trace, placement = active.trace, placement_of(cell.array)
    return trace.placements.get(cell) if placement is None and trace is not None else placement


def keep_placement(tensor: torch.Tensor, placement: Sharding | None) -> torch.Tensor:
    """Records the placement of a tensor's storage, which in eager mode its array already has, and
    returns the tensor.
    """
    if active.trace is not None and placement is not None:
        active.trace.placements[cell_of(tensor)] = placement
    return tensor
