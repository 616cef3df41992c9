"""Hints for errors of PyTorch or Python that are raised in a trace."""

from typing import Any

import torch
from jax.core import Tracer

from calque.device.memory.cell import refuse_nested
from calque.errors import unrepeatable
from calque.jitting.error_values import TRACED

_HINTS = (
    (
        TypeError,
        "can't convert jax:0 device type tensor to numpy",
        "inside calque.jit it has no value: return it, and call .cpu().numpy() on the result",
    ),
)


_KEY = (
    "A dict finds a tensor by its identity, not by its value. Keep the items in a tensor, and "
    "index that: table[i.reshape(1)]"
)


def add_hint(error: Exception) -> None:
    """Add a note to an error with a misleading message."""
    if isinstance(error, KeyError) and any(map(_is_tensor, error.args)):
        if _KEY not in getattr(error, "__notes__", ()):
            error.add_note(_KEY)
        return
    for kind, words, hint in _HINTS:
        if isinstance(error, kind) and words in str(error):
            if hint not in getattr(error, "__notes__", ()):
                error.add_note(hint)


def _is_tensor(key: object) -> bool:
    return isinstance(key, torch.Tensor) or (isinstance(key, str) and key.startswith(TRACED))


def refuse_arguments(leaves: list[Any]) -> None:
    """Raise an error if an argument of a jitted function is traced by JAX or a nested tensor."""
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            refuse_nested(leaf)
        if isinstance(leaf, Tracer):
            raise unrepeatable(
                f"an array of JAX of shape {leaf.shape} that is traced",
                "by jax.jit, jax.grad or another transformation of JAX is passed to a function "
                "that calque.jit compiles by itself",
                "Make a JAX function of it, apply, params = calque.functional(fn), and transform "
                "that.",
            )
