"""Names of lifted tensors in the user's program, for reports."""

import torch
from torch.optim import Optimizer

from calque.device.memory.cell import Cell, cell_of
from calque.jitting.optimizer_states import states_of
from calque.jitting.reachable import Reachable
from calque.program.trees import is_tensor


def names_by_cell(
    reach: Reachable, optimizers: list[Optimizer], gradients: dict[int, torch.Tensor | None]
) -> dict[Cell, str]:
    """Returns names for the cells of the tensors that were reached, their gradients and optimizer
    state.

    Args:
        reach: the objects that the function reaches.
        optimizers: the optimizers that stepped.
        gradients: the gradients of tensors before the trace, by the tensor's id.
    """
    names = {cell_of(t): reach.names[key] for key, t in reach.tensors.items() if is_tensor(t)}
    for optimizer in optimizers:
        path = reach.optimizers.get(optimizer) or type(optimizer).__name__
        for parameter, state in states_of(optimizer):
            owner = f"{path}.state[{reach.names.get(id(parameter), '...')}]"
            for key, value in state.items():
                if is_tensor(value):
                    names.setdefault(cell_of(value), f"{owner}.{key}")
    for key, gradient in gradients.items():
        if gradient is not None and key in reach.names:
            names.setdefault(cell_of(gradient), f"{reach.names[key]}.grad")
    return names
