"""Attributes of modules that a traced function sets to tensors, which die with the trace."""

from collections.abc import Iterable
from typing import Any

import jax
import torch

from calque.errors import TraceError
from calque.federated.constants import Constants


class Attributes:
    """The attributes of modules before a function runs.

    Args:
        modules: those that the function can reach, and the modules in them.
    """

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        parts = {id(part): part for module in modules for part in module.modules()}
        self._before = [(part, dict(vars(part))) for part in parts.values()]

    def settle(self) -> None:
        """Put back those that hold tensors of the trace.

        Raises:
            TraceError: one is how the function keeps something from call to call: a tensor that the
                function has read, and given another value.
        """
        lost: list[str] = []
        for part, before in self._before:
            for name, value in list(vars(part).items()):
                old = before.get(name)
                if value is old or not _is_of_trace(value):
                    continue
                if isinstance(old, torch.Tensor) and Constants.have_read(old):
                    lost.append(f"{name!r} of {type(part).__name__}")
                if name in before:
                    vars(part)[name] = old
                else:
                    del vars(part)[name]
        if lost:
            raise TraceError(
                f"the attribute {lost[0]} is read and given another tensor, which is lost: the "
                "function runs while it is traced, and not at each call.\n"
                "What a module keeps is a buffer (register_buffer), which federated.learning "
                "trains; a local function takes it as an argument, and returns it."
            )


def _is_of_trace(value: Any) -> bool:
    """Returns True for a tensor that has no value, or a container of such."""
    if isinstance(value, dict | list | tuple):
        return any(map(_is_of_trace, value.values() if isinstance(value, dict) else value))
    if not (isinstance(value, torch.Tensor) and value.device.type == "jax"):
        return False
    cell = getattr(value.untyped_storage(), "cell", None)
    return cell is not None and isinstance(cell.array, jax.core.Tracer)
