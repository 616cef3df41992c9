"""PyTorch's modes, which affect a function, and which it may change."""

from collections.abc import Callable
from typing import Any

import torch

from calque.device.runtime import precision
from calque.errors import TraceError
from calque.upstream import torch_c
from calque.upstream.torch_internals import (
    get_current_dispatch_mode_stack,
    get_current_function_mode_stack,
)

_stack_length = torch_c.len_torch_function_stack
_MODES: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
    "grad mode": (torch.is_grad_enabled, torch_c.set_grad_enabled),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "autocast": (
        lambda: (torch.is_autocast_enabled("jax"), torch.get_autocast_dtype("jax")),
        lambda v: (torch.set_autocast_enabled("jax", v[0]), torch.set_autocast_dtype("jax", v[1])),
    ),
    "deterministic algorithms": (
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda v: torch.use_deterministic_algorithms(v[0], warn_only=v[1]),
    ),
}


def ambient() -> tuple[Any, ...]:
    """Returns the modes for which a program is compiled."""
    enabled = torch.is_autocast_enabled("jax")
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        enabled and torch.get_autocast_dtype("jax"),
        torch.get_default_dtype(),
        precision.settings(),
        _function_modes() if _stack_length() else None,
    )


def _function_modes() -> tuple[Any, ...]:
    """Returns the active function modes, such as a default device."""
    return tuple(
        getattr(mode, "device", None) or (type(mode), id(mode))
        for mode in get_current_function_mode_stack()
    )


def function_modes() -> list[Any]:
    """Returns the active function modes themselves."""
    return list(get_current_function_mode_stack())


class Modes:
    """The modes before a trace."""

    def __init__(self) -> None:
        self._before = {name: read() for name, (read, _) in _MODES.items()}
        self._functions = _function_modes()
        self._dispatch = len(get_current_dispatch_mode_stack())

    def changed(self) -> dict[str, Any]:
        """Returns the modes that have changed, and restores them."""
        found = {}
        for name, (read, write) in _MODES.items():
            now = read()
            if now != self._before[name]:
                found[name] = now
                write(self._before[name])
        return found

    def check_functions(self) -> None:
        """Raise TraceError if the default device, or another function mode, was changed."""
        if _function_modes() != self._functions:
            raise TraceError(
                "the default device, or another function mode, is changed inside calque.jit and "
                "not restored.\nChange it outside, or in a `with` statement."
            )

    def restore(self) -> None:
        """Restore the modes that were changed."""
        self.changed()


def set_modes(modes: dict[str, Any]) -> None:
    """Set the modes that the function left."""
    for name, value in modes.items():
        _MODES[name][1](value)
