"""Integer division by zero raises, as on the CPU; in a trace only where that is asked for.

A divisor that is a tensor is read by the host for that: integer divisions wait for their operands.
"""

from typing import Any

import torch
from jax.core import Tracer

from calque.device.kernels import trace_checks
from calque.device.kernels.binding import Kernel, derived
from calque.device.memory.cell import read, x64

_NAMES = (
    "floor_divide",
    "floor_divide_.Tensor",
    "floor_divide.out",
    "remainder.Tensor",
    "remainder.Scalar",
    "remainder.Scalar_Tensor",
    "remainder_.Tensor",
    "remainder_.Scalar",
    "remainder.Tensor_out",
    "remainder.Scalar_out",
    "fmod.Tensor",
    "fmod.Scalar",
    "fmod_.Tensor",
    "fmod_.Scalar",
    "fmod.Tensor_out",
    "fmod.Scalar_out",
    "div.Tensor_mode",
    "div.Scalar_mode",
    "div_.Tensor_mode",
    "div_.Scalar_mode",
    "div.out_mode",
)
Tensor = torch.Tensor


def _integral(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not (value.is_floating_point() or value.is_complex())
    return isinstance(value, int)


def _check(self: Any, other: Any) -> None:
    if not _integral(other) or not _integral(self) or not trace_checks.looking():
        return
    if any(isinstance(x, Tensor) and not x.numel() for x in (self, other)):
        return
    if not isinstance(other, Tensor):
        divides = other != 0
    elif other.device.type == "jax":
        array = read(other)
        if isinstance(array, Tracer):
            trace_checks.collect(array == 0, array, _zero_division)
            return
        with x64():
            divides = bool(array.all())
    else:
        divides = bool(other.all())
    if not divides:
        raise _zero_division(0)


def _zero_division(divisor: int) -> Exception:
    return RuntimeError("ZeroDivisionError")


def _checked(name: str) -> Kernel:
    inner = derived(f"aten::{name}")
    if inner is None:
        raise LookupError(f"no rule serves {name}")
    kernel = inner
    by_mode = name.startswith("div")

    def run(self: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        if not by_mode or kwargs.get("rounding_mode") is not None:
            _check(self, other)
        return kernel(self, other, *args, **kwargs)

    return run


def kernels() -> dict[str, Kernel]:
    """The kernels by operator name."""
    return {name: _checked(name) for name in _NAMES}
