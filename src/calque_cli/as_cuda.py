"""Makes the jax device a replacement for CUDA, for scripts that only support CUDA."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode
from torch.serialization import default_restore_location

from calque.device.backend import forks
from calque.upstream.torch_internals import autograd_graph
from calque_cli import cuda_names
from calque_cli.cuda_names import renamed, type_of

_INSIDE = ("torch", "calque", "calque_cli", "jax")
"""Packages whose code sees tensors on the jax device as such."""

_is_cuda = torch.Tensor.is_cuda.__get__
_device_of = torch.Tensor.device.__get__


class _Renaming(TorchFunctionMode):
    """Replaces "cuda" by "jax" in calls of PyTorch, and shows "cuda" to scripts."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            order = kwargs.get("memory_format", torch.preserve_format)
            return args[0].to("jax", memory_format=order)
        if func is torch.Tensor.type:
            return _of_type(*args, **kwargs)
        # Dynamo only traces the script's code.
        if torch.compiler.is_dynamo_compiling() or _caller() not in _INSIDE:
            if func is torch.device:
                return func(*args, **kwargs)
            if func == _is_cuda:
                return args[0].device.type == "jax"
            if func == _device_of:
                return _shown(args[0].device)
        args = tuple(renamed(arg) for arg in args)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": renamed(kwargs["device"])}
        if kwargs.get("pin_memory") is True:  # XLA does not need pinned memory
            kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **kwargs)


def _shown(device: torch.device) -> torch.device:
    """Returns a device as a script sees it."""
    return torch.device("cuda", device.index) if device.type == "jax" else device


def _caller() -> str:
    """Returns the package of the caller's caller, ignoring a default device mode in between."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") == "torch.utils._device":
        frame = frame.f_back
    return frame.f_globals.get("__name__", "").partition(".")[0]


def _of_type(tensor: torch.Tensor, dtype: Any = None, **kwargs: Any) -> Any:
    """Returns a `Tensor.type` that takes CUDA's types and returns their names."""
    if dtype is None:
        return cuda_names.name_of_type(tensor) or tensor.type()
    found = type_of(dtype)
    return tensor.type(dtype, **kwargs) if found is None else tensor.to("jax", found.dtype)


@contextmanager
def standing_in(default: bool = False) -> Iterator[None]:
    """A context in which a program for CUDA runs on the jax device.

    Args:
        default: whether tensors without an explicit device are created there, too, including those
            from NumPy arrays; then `numpy()` returns a copy.
    """
    with ExitStack() as stack:

        def put(owner: object, name: str, value: object) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        for name, ours in cuda_names.names().items():
            for module in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams):
                if hasattr(module, name):
                    put(module, name, ours)
        put(torch.cuda, "_is_in_bad_fork", forks.is_bad)
        for name, ours in cuda_names.MARKERS.items():
            put(torch.cuda.nvtx, name, ours)
        for name, ours in cuda_names.PROFILER.items():
            put(torch.cuda.profiler, name, ours)
        for owner in (torch.amp.autocast_mode.autocast, torch.amp.GradScaler):
            put(owner, "__init__", _renaming(owner.__init__))
        makes_generators: Any = type(torch.Generator)
        put(makes_generators, "__call__", _renaming(makes_generators.__call__))
        profiler = torch.profiler.profile
        put(profiler, "__init__", _of_the_cpu(profiler.__init__))
        put(torch.nn.Module, "cuda", _module_to_jax)
        put(torch.nn.Module, "to", _renaming(torch.nn.Module.to))
        for name, ours in _AUTOCAST.items():
            put(torch, name, _of_cuda_by_itself(ours))
        put(torch, "compile", _by_calque(torch.compile))
        put(torch, "set_default_device", _renaming(torch.set_default_device))
        put(torch.UntypedStorage, "cuda", _storage_to_jax)
        put(PackedSequence, "is_cuda", property(lambda packed: packed.data.device.type == "jax"))
        put(torch, "load", _loading(torch.load))
        put(torch, "set_default_tensor_type", _by_default(torch.set_default_tensor_type))
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        if default:
            stack.enter_context(torch.device("jax"))
            put(torch, "from_numpy", _on_the_device)
            put(torch.Tensor, "numpy", _by_the_cpu(torch.Tensor.numpy))
        put(threading.Thread, "run", _inside(threading.Thread.run))
        for module in (torch.autograd, autograd_graph):  # these call hooks outside of the mode
            name = "_engine_run_backward"
            put(module, name, _inside(getattr(module, name)))
        stack.enter_context(_Renaming())
        yield


def _inside(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with renaming active inside, whatever thread it runs in."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False), _Renaming():
            return function(*args, **kwargs)

    return call


def _renaming(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        named = {name: renamed(value) for name, value in kwargs.items()}
        return function(*map(renamed, args), **named)

    return call


def _of_the_cpu(init: Any) -> Any:
    """`torch.profiler.profile.__init__` without CUDA activities, because XLA runs the kernels."""

    def call(self: Any, *, activities: Any = None, **kwargs: Any) -> None:
        cuda = torch.profiler.ProfilerActivity.CUDA
        kept = [activity for activity in activities or () if activity != cuda]
        init(self, activities=kept or None, **kwargs)

    return call


_AUTOCAST = {
    "get_autocast_dtype": torch.get_autocast_dtype,
    "get_autocast_gpu_dtype": torch.get_autocast_dtype,
    "is_autocast_enabled": torch.is_autocast_enabled,
    "set_autocast_dtype": torch.set_autocast_dtype,
    "set_autocast_enabled": torch.set_autocast_enabled,
    "set_autocast_gpu_dtype": torch.set_autocast_dtype,
}


def _of_cuda_by_itself(function: Any) -> Any:
    """Returns a function whose first argument, a device type, defaults to CUDA."""

    def call(*args: Any) -> Any:
        if not (args and isinstance(args[0], str)):
            args = ("cuda", *args)
        return function(*map(renamed, args))

    return call


def _loading(load: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `torch.load` that treats tensors saved on either device as saved on CUDA."""

    def call(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        def place(storage: Any, location: str) -> Any:
            where = location.replace("jax", "cuda")
            if callable(map_location):
                found = map_location(storage, where)
                if found is not None:
                    return found
            elif isinstance(map_location, dict):
                where = map_location.get(where, where)
            return default_restore_location(storage, renamed(where))

        if map_location is None or callable(map_location) or isinstance(map_location, dict):
            return load(f, place, *args, **kwargs)
        return load(f, renamed(map_location), *args, **kwargs)

    return call


def _by_calque(compile: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `torch.compile` with calque's backend as the default."""

    def call(model: Any = None, *, backend: Any = "inductor", **kwargs: Any) -> Any:
        if backend != "inductor":
            return compile(model, backend=backend, **kwargs)
        for of_inductor in ("mode", "options"):
            kwargs.pop(of_inductor, None)
        return compile(model, backend="calque", **kwargs)

    return call


def _by_default(plain: Callable[..., None]) -> Callable[..., None]:
    """Returns a `torch.set_default_tensor_type` that takes CUDA's types."""

    def call(type_: Any) -> None:
        found = type_of(type_)
        if found is None:
            plain(type_)
            torch.set_default_device("cpu")
        else:
            torch.set_default_dtype(found.dtype)
            torch.set_default_device("jax")

    return call


def _on_the_device(array: Any, plain: Any = torch.from_numpy) -> torch.Tensor:
    if _caller() in ("calque", "torch"):  # internal copies between the device and the CPU
        return plain(array)
    return plain(array).to("jax")


def _by_the_cpu(numpy: Any) -> Any:
    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return numpy(tensor.cpu() if tensor.device.type == "jax" else tensor, *args, **kwargs)

    return call


def _module_to_jax(module: Any, device: object = None) -> Any:
    return module.to("jax")


def _storage_to_jax(storage: Any, device: Any = None, non_blocking: bool = False) -> Any:
    return storage.to(device=torch.device("jax"))
