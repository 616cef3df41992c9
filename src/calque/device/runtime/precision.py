"""PyTorch's settings for the precision of float32 on accelerators, which hold here as on CUDA.

Products of float32 matrices are exact to float32 by default; `torch.set_float32_matmul_precision`
allows the faster units. Convolutions may use them unless `torch.backends.cudnn.allow_tf32` is
False. JAX's own setting, `jax_default_matmul_precision`, has priority over both.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
from jax import lax

from calque.device.runtime.placement import host_has_default_device
from calque.ops.table import precision
from calque.upstream import torch_c


class Settings(NamedTuple):
    """PyTorch's names of the precisions."""

    products: str
    convolutions: str


class _Last:
    """The settings for which the operators were compiled, and how often they have changed."""

    settings: Settings | None = None
    changes = 0


last: _Last = _Last()
_FASTER = {"tf32": lax.Precision.HIGH, "bf16": lax.Precision.DEFAULT}


def settings() -> Settings | None:
    """Returns the settings that a program is compiled for; None if they do not matter."""
    if host_has_default_device():
        return None
    read = torch_c.fp32_precision
    return Settings(read("cuda", "matmul"), read("cuda", "conv"))


def scope() -> AbstractContextManager[None]:
    """Returns the scope in which a rule is applied."""
    found = settings()
    if found is None or jax.config.jax_default_matmul_precision is not None:  # type: ignore[attr-defined]
        return nullcontext()
    return precision.scope(*(_FASTER.get(name, lax.Precision.HIGHEST) for name in found))


def following(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a jitted function that calls `refresh` first, if the settings matter."""
    if host_has_default_device():
        return function

    def call(*arrays: Any) -> Any:
        refresh()
        return function(*arrays)

    return call


def refresh() -> None:
    """Forget what was compiled for other settings; called before eager calls that apply a rule."""
    if not host_has_default_device():
        found = settings()
        if found != last.settings:
            if last.settings is not None:
                jax.clear_caches()
                last.changes += 1
            last.settings = found
