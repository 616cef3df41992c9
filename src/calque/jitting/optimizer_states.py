"""The state that an optimizer keeps for each parameter."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer


def states_of(optimizer: Optimizer) -> Iterator[tuple[torch.Tensor, dict[str, Any]]]:
    """Returns each parameter and its state, without other entries of an optimizer's `state`."""
    for parameter, state in list(optimizer.state.items()):
        if isinstance(parameter, torch.Tensor) and isinstance(state, dict):
            yield parameter, state


def counts_of(optimizer: Optimizer) -> Iterator[tuple[dict[Any, Any], Any, torch.Tensor]]:
    """Returns one-element CPU tensors of an optimizer whose parameters are not on the CPU.

    They are in the state of a parameter or of the optimizer, or in a param group, except for
    hyper-parameters.

    Returns:
        The dict, the key and the tensor of each.
    """
    groups = [group for group in optimizer.param_groups if any(map(_is_on_device, group["params"]))]
    holders: list[Any] = [
        state for parameter, state in states_of(optimizer) if _is_on_device(parameter)
    ]
    if groups:
        holders.append(optimizer.state)
    for holder in holders:
        for key, value in list(holder.items()):
            if _is_count(value):
                yield holder, key, value
    for group in groups:
        for key, value in list(group.items()):
            if _is_count(value) and key not in optimizer.defaults:
                yield group, key, value


def _is_count(value: object) -> bool:
    is_tensor = isinstance(value, torch.Tensor)
    return is_tensor and value.device.type == "cpu" and value.numel() == 1 and value.ndim < 2


def _is_on_device(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "jax"
