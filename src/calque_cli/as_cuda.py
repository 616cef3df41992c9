"""The jax device in the place of CUDA, for scripts that know no other."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from calque.upstream.torch_internals import tree_map

_SAME = (
    "current_device",
    "device_count",
    "empty_cache",
    "get_device_name",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "memory_allocated",
    "mem_get_info",
    "reset_peak_memory_stats",
    "seed",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "synchronize",
)
"""Functions of `torch.cuda` whose place those of `torch.jax` take."""


def renamed(value: Any) -> Any:
    """A device of CUDA as the jax device; anything else as it is."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("jax")
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return "jax"
    return value


class _Renaming(TorchFunctionMode):
    """Puts "jax" where a call of PyTorch's says "cuda"."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0].to("jax")
        args = tuple(renamed(arg) for arg in args)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": renamed(kwargs["device"])}
        if func is torch.load:
            kwargs["map_location"] = renamed(kwargs.get("map_location"))
        return func(*args, **kwargs)


@contextmanager
def standing_in(default: bool = False) -> Iterator[None]:
    """Inside this context, a program for CUDA runs on the jax device.

    Args:
        default: whether tensors made without a device are made there, too, those of NumPy's
            arrays among them; and `numpy()` of a tensor there is a copy.
    """
    with ExitStack() as stack:
        for name in _SAME:
            if hasattr(torch.cuda, name) and hasattr(torch.jax, name):
                ours = _of_any_device(getattr(torch.jax, name))
                stack.enter_context(mock.patch.object(torch.cuda, name, ours))
        for owner in (torch.amp.autocast_mode.autocast, torch.amp.GradScaler):
            stack.enter_context(mock.patch.object(owner, "__init__", _renaming(owner.__init__)))
        stack.enter_context(mock.patch.object(torch.nn.Module, "cuda", _module_to_jax))
        stack.enter_context(mock.patch.object(torch.nn.Module, "to", _renaming(torch.nn.Module.to)))
        stack.enter_context(mock.patch.object(torch, "load", _renaming(torch.load)))
        if default:
            stack.enter_context(torch.device("jax"))
            stack.enter_context(mock.patch.object(torch, "from_numpy", _on_the_device))
            plain = torch.Tensor.numpy
            stack.enter_context(mock.patch.object(torch.Tensor, "numpy", _by_the_cpu(plain)))
        stack.enter_context(_Renaming())
        yield


def _of_any_device(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(renamed, (args, kwargs))
        return function(*args, **kwargs)

    return call


def _renaming(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        named = {name: renamed(value) for name, value in kwargs.items()}
        return function(*map(renamed, args), **named)

    return call


def _on_the_device(array: Any, plain: Any = torch.from_numpy) -> torch.Tensor:
    caller = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
    if caller in ("calque", "torch"):  # on their way between the device and the CPU
        return plain(array)
    return plain(array).to("jax")


def _by_the_cpu(numpy: Any) -> Any:
    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return numpy(tensor.cpu() if tensor.device.type == "jax" else tensor, *args, **kwargs)

    return call


def _module_to_jax(module: Any, device: Any = None) -> Any:
    return module.to("jax")
