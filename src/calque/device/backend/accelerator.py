"""`torch.accelerator` on the device, for which PyTorch would call an allocator written in C++."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from calque.device.backend import peak_memory, torch_jax

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "synchronize": torch_jax.synchronize,
    "empty_cache": torch_jax.empty_cache,
    "memory_stats": lambda device=None: peak_memory.as_torch(
        torch_jax.memory_stats(), torch_jax.memory_allocated()
    ),
    "get_memory_info": torch_jax.get_memory_info,
    "memory_allocated": torch_jax.memory_allocated,
    "max_memory_allocated": torch_jax.max_memory_allocated,
    "memory_reserved": torch_jax.memory_allocated,
    "max_memory_reserved": torch_jax.max_memory_allocated,
    "reset_peak_memory_stats": torch_jax.reset_peak_memory_stats,
    "reset_accumulated_memory_stats": torch_jax.reset_peak_memory_stats,
}


def _pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """Returns the tensor itself: XLA copies from any memory, so there is nothing to pin."""
    if tensor.device.type != "cpu" or (device is not None and torch.device(device).type != "jax"):
        return _their_pin_memory(tensor, *(() if device is None else (device,)))
    return tensor


_their_pin_memory = torch.Tensor.pin_memory


def _name_the_alternative() -> None:
    """Make the error of `torch.Generator("jax")`, which only C++ could create, name the
    alternative.
    """
    kind = type(torch.Generator)  # the metaclass, because `torch.Generator` itself is immutable
    if kind is type:
        return
    make = kind.__call__

    def call(cls: type, *args: Any, **kwargs: Any) -> Any:
        try:
            return make(cls, *args, **kwargs)
        except NotImplementedError as error:
            if cls is not torch.Generator or "getNewGenerator" not in str(error):
                raise
        raise NotImplementedError(
            "the device 'jax' has one random generator and no torch.Generator: seed it with "
            "torch.manual_seed or torch.jax.manual_seed, and keep its state with "
            "torch.jax.get_rng_state and set_rng_state"
        )

    kind.__call__ = call  # type: ignore[method-assign]


def install() -> None:
    """Make `torch.accelerator` support the jax device."""
    _name_the_alternative()
    torch.Tensor.pin_memory = _in_front(_their_pin_memory, _pin_memory)  # type: ignore[method-assign]
    for name, ours in FUNCTIONS.items():
        theirs = getattr(torch.accelerator, name, None)
        if theirs is None:
            continue
        method = _in_front(theirs, ours)
        setattr(torch.accelerator, name, method)
        memory = getattr(torch.accelerator, "memory", None)
        if getattr(memory, name, None) is theirs:
            setattr(memory, name, method)


def _in_front(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def function(*args: Any, **kwargs: Any) -> Any:
        current = torch.accelerator.current_accelerator()
        if current is not None and current.type == "jax":
            return ours(*args, **kwargs)
        return theirs(*args, **kwargs)

    return function
