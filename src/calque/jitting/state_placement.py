"""Places the state of an optimizer like its parameters."""

import torch
from jax.sharding import Sharding
from torch.optim import Optimizer

from calque.device.memory.cell import active, cell_of, current, replace
from calque.device.memory.placing import keep_placement, placement_like
from calque.device.runtime.placement import placed, spread
from calque.jitting.optimizer_states import states_of


def place_state(optimizer: Optimizer) -> None:
    """Give state with its parameter's shape the parameter's placement, if it has none.

    Optimizers create state like a gradient, which has no placement while a function is traced, or
    by its shape. Without this, each device would hold the whole state.
    """
    if not spread.exists:
        return
    for parameter, state in states_of(optimizer):
        placement = placement_like(parameter) if _is_ours(parameter) else None
        if placement is None:
            continue
        for value in state.values():
            if _is_ours(value) and value.shape == parameter.shape:
                _place(value, placement)


def _is_ours(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "jax"


def _place(tensor: torch.Tensor, placement: Sharding) -> None:
    cell = cell_of(tensor)
    if cell.viewed or placement_like(tensor) is not None:
        return
    trace = active.trace
    if trace is None:
        cell.array = placed(cell.array, placement)
    elif trace.is_fresh(cell):
        keep_placement(tensor, placement)
        replace(cell, current(cell))
