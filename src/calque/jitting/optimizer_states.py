"""The state that an optimizer keeps for each parameter."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from calque.upstream.torch_c import has_storage


def states_of(optimizer: Optimizer) -> Iterator[tuple[torch.Tensor, dict[str, Any]]]:
    """Returns each parameter and its state, without other entries of an optimizer's `state`."""
    for parameter, state in list(optimizer.state.items()):
        if isinstance(parameter, torch.Tensor) and isinstance(state, dict):
            yield parameter, state


def cells_of(optimizer: Optimizer) -> list[Any]:
    """Returns the cell of each parameter of an optimizer; None if it is not on the device."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [
        getattr(p.untyped_storage(), "cell", None) if _is_on_device(p) and has_storage(p) else None
        for p in parameters
    ]


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


def has_pytorchs_init_group(optimizer: Optimizer) -> bool:
    """Returns True if an optimizer has a method of PyTorch's that creates its state."""
    method = getattr(type(optimizer), "_init_group", None)
    return method is not None and method.__module__.startswith("torch.optim.")


def run_init_group(optimizer: Any, group: dict[str, Any]) -> None:
    """Create the state of a param group as the optimizer's first step would."""
    parameters = list(inspect.signature(optimizer._init_group).parameters.values())[1:]
    lists = [[] for p in parameters if p.default is inspect.Parameter.empty]
    optimizer._init_group(group, *lists)


def create_momentum_buffers(optimizer: Optimizer, group: dict[str, Any]) -> None:
    """Create SGD's buffers as zeros if this gives the same first step (no dampening)."""
    if group["momentum"] == 0 or group["dampening"] != 0:
        return
    for parameter in group["params"]:
        if (
            parameter.grad is not None
            and not optimizer.state[parameter].get("momentum_buffer") is not None
        ):
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
