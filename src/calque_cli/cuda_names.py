"""Replacements of the names in `torch.cuda` when the jax device stands in for CUDA.

`torch.jax` provides the names that it has. The replacements below are for names with a meaning on
any device, and for functions that need not do anything. Any other function that needs CUDA raises
an error with its name.
"""

from collections.abc import Callable
from contextlib import ContextDecorator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from calque.upstream.torch_internals import tree_map

CAPABILITY = (8, 0)
"""That of the first GPUs with bfloat16: scripts read it to check for bfloat16, which the jax device
supports.
"""

TENSOR_TYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


def renamed(value: object) -> Any:
    """Returns the jax device for a CUDA device, and anything else unchanged."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("jax", value.index)
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return "jax" + value[len("cuda") :]
    return value


class TensorType(type):
    """The class of the replacements of `torch.cuda.FloatTensor` and the like."""

    dtype: torch.dtype

    def __instancecheck__(cls, value: Any) -> bool:
        is_there = isinstance(value, torch.Tensor) and value.device.type == "jax"
        return is_there and value.dtype == cls.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        return getattr(torch, cls.__name__)(*args, **kwargs).to("jax")


def type_of(value: object) -> TensorType | None:
    """Returns the replacement of a CUDA tensor type, or of its name."""
    if isinstance(value, str) and value.startswith("torch.cuda."):
        return _TYPES.get(value.rpartition(".")[2])
    return value if isinstance(value, TensorType) else None


def name_of_type(tensor: torch.Tensor) -> str | None:
    """Returns the name of CUDA's type for a tensor on the jax device; None for other tensors."""
    return next((f"torch.cuda.{n}" for n, one in _TYPES.items() if isinstance(tensor, one)), None)


_TYPES = {name: TensorType(name, (), {"dtype": dtype}) for name, dtype in TENSOR_TYPES.items()}


@dataclass(frozen=True)
class Properties:
    """The result of `torch.cuda.get_device_properties` for the jax device."""

    name: str
    total_memory: int
    multi_processor_count: int
    major: int = CAPABILITY[0]
    minor: int = CAPABILITY[1]
    is_integrated: bool = False
    is_multi_gpu_board: bool = False
    warp_size: int = 32


def get_device_properties(device: object = None) -> Properties:
    """Returns the name and memory of the jax device; JAX does not report its processors."""
    with torch.jax.device(device):
        return Properties(torch.jax.get_device_name(), torch.jax.mem_get_info()[1], 1)


def get_device_capability(device: object = None) -> tuple[int, int]:
    """Returns `CAPABILITY`."""
    return CAPABILITY


def memory_summary(device: object = None, abbreviated: bool = False) -> str:
    """Returns the memory in use, and its peak."""
    used, peak = torch.jax.memory_allocated(), torch.jax.max_memory_allocated()
    return f"{torch.jax.get_device_name()}: {used:,} bytes in use, {peak:,} at the peak"


def ignored(*_: Any, **__: Any) -> None:
    """Do nothing: JAX does this itself, or it is not needed."""


def _never(*_: Any, **__: Any) -> bool:
    return False


def _first(*_: Any, **__: Any) -> int:
    return 0


class Graph:
    """A stand-in for CUDA graphs, for annotations in scripts."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(
            "CUDA graphs have no counterpart on the jax device: jit the step with calque.jit"
        )


class NothingDiffers(ContextDecorator):
    """A context manager or decorator without effect."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class _Runtime:
    """The functions of CUDA's runtime that start a profiler."""

    cudaProfilerStart = staticmethod(_first)
    cudaProfilerStop = staticmethod(_first)


def _meanings() -> dict[str, Any]:
    """Returns replacements for names that `torch.jax` does not have."""
    torch_jax: Any = torch.jax
    return {
        "CUDAGraph": Graph,
        "can_device_access_peer": _never,
        "cudart": _Runtime,
        "device_of": NothingDiffers,
        "get_device_capability": get_device_capability,
        "get_device_properties": get_device_properties,
        "graph": Graph,
        "ipc_collect": ignored,
        "is_current_stream_capturing": _never,
        "make_graphed_callables": Graph,
        "max_memory_cached": torch_jax.max_memory_allocated,
        "max_memory_reserved": torch_jax.max_memory_allocated,
        "memory_cached": torch_jax.memory_allocated,
        "memory_reserved": torch_jax.memory_allocated,
        "memory_summary": memory_summary,
        "reset_accumulated_memory_stats": torch_jax.reset_peak_memory_stats,
        "reset_max_memory_allocated": torch_jax.reset_peak_memory_stats,
        "reset_max_memory_cached": torch_jax.reset_peak_memory_stats,
        "seed_all": torch_jax.seed,
        "set_per_process_memory_fraction": ignored,
        **_TYPES,
    }


PROFILER = {"start": ignored, "stop": ignored, "profile": NothingDiffers}
"""Replacements for `torch.cuda.profiler`, which starts and ends a CUDA profile."""

MARKERS = {
    "mark": ignored,
    "range": NothingDiffers,
    "range_end": ignored,
    "range_pop": _first,
    "range_push": _first,
    "range_start": _first,
}
"""Replacements for `torch.cuda.nvtx`, which write no markers."""


def names() -> dict[str, Any]:
    """Returns the replacements of the public names of `torch.cuda`."""
    given = _meanings()
    found = {}
    for name in dir(torch.cuda):
        theirs = getattr(torch.cuda, name)
        if name.startswith("_") or not callable(theirs):
            continue
        if name in given:
            ours = given[name]
        elif hasattr(torch.jax, name):
            ours = getattr(torch.jax, name)
        elif isinstance(theirs, FunctionType):
            found[name] = _answered(name, theirs)
            continue
        else:
            continue
        found[name] = _of_any_device(ours, theirs) if isinstance(ours, FunctionType) else ours
    found["device"] = _Device
    return found


class _Device(torch.jax.device):
    """`torch.jax.device`, for a device with a CUDA name."""

    def __init__(self, device: Any = None) -> None:
        super().__init__(renamed(device))


def _of_any_device(function: Callable[..., Any], theirs: object) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(renamed, (args, kwargs))
        return function(*args, **kwargs)

    return _with_what_it_holds(call, theirs)


def _with_what_it_holds(call: Callable[..., Any], theirs: object) -> Callable[..., Any]:
    """Returns a function's replacement with its attributes, because Dynamo reads `__wrapped__` of
    some.
    """
    vars(call).update(getattr(theirs, "__dict__", {}))
    return call


def _answered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with an error that names it if it needs CUDA."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (AssertionError, AttributeError, ImportError, KeyError, NameError, RuntimeError):
            raise NotImplementedError(
                f"torch.cuda.{name} has no counterpart on the jax device"
            ) from None

    return _with_what_it_holds(call, function)
