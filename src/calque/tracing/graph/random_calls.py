"""Calls that set or read the state of random numbers, when a graph runs."""

from typing import Any

import torch

from calque.tracing.graph.checks import recorded
from calque.upstream.torch_internals import disable_current_modes


@recorded
def manual_seed(seed: object) -> Any:
    """Calls the current `torch.manual_seed`: PyTorch replaces it when a compiler is loaded."""
    return torch.manual_seed(seed)


@recorded
def random_state(*device: Any) -> torch.Tensor:
    """Returns `torch.get_rng_state()`, or the state of a device, given its type and index."""
    with disable_current_modes():  # its writes bypass modes
        if device:
            return torch.get_device_module(device[0]).get_rng_state(device[1])
        return torch.random.get_rng_state()


@recorded
def forked_state(*device: Any) -> torch.Tensor:
    """Like `random_state`, for `torch.random.fork_rng`, which restores it after an error too."""
    return random_state(*device)


@recorded
def set_random_state(state: Any, *device: Any) -> None:
    """Calls `torch.set_rng_state`, or the same function of a device."""
    if device:
        torch.get_device_module(device[0]).set_rng_state(state, device[1])
    else:
        torch.random.set_rng_state(state)


@recorded
def make_generator(*device: Any) -> torch.Generator:
    """Creates a generator of random numbers, in each run of the graph."""
    return torch.Generator(*device)


@recorded
def of_generator(method: str, generator: torch.Generator, *args: Any) -> Any:
    """Calls a method that sets or reads a generator's state."""
    return getattr(generator, method)(*args)
