"""Refuses writes to tensors from outside a local function, which are constants.

Code on the CPU runs once, while the function is traced, so a write would not be repeated, and
random numbers would be the same in every call.
"""

from collections.abc import Mapping
from typing import Any

import torch

from calque.device.kernels import foreign
from calque.device.kernels.fallback import written
from calque.device.memory.cell import active
from calque.errors import TraceError
from calque.upstream import torch_c
from calque.upstream.torch_internals import (
    OpOverload,
    TorchDispatchMode,
    tree_leaves,
)

_LIFT = torch.ops.aten.lift_fresh.default
"""The function that `torch.tensor` calls with the tensor that it has created."""


class ConstantChecks(TorchDispatchMode):
    """Refuses uses of outside tensors in a local function that its program cannot repeat.

    Args:
        trained: parameters that clients train, by name. Copies replace them in the trace, so a read
            of the originals would return their old values.
    """

    supports_higher_order_operators = True

    def __init__(self, trained: Mapping[str, torch.Tensor] | None = None) -> None:
        super().__init__()
        self._trained = {_memory(tensor): name for name, tensor in (trained or {}).items()}
        self._made: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        if func is _LIFT:
            self._note([args[0]])
        if func._schema.is_mutable:
            if any(map(self._is_from_outside, written(func, args, kwargs))):
                raise written_constant()
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        self._see(tensors)
        result = foreign.run(func, args, kwargs)
        given = {_memory(x) for x in tensors if _is_on_cpu(x)}
        made = [x for x in tree_leaves(result) if _is_on_cpu(x) and _memory(x) not in given]
        if made and torch.Tag.nondeterministic_seeded in func.tags:
            raise TraceError(
                "a random operator runs on the CPU in a local function, so it would give "
                "the same numbers at every call.\nLeave device='cpu' out."
            )
        self._note(made)
        return result

    def _is_from_outside(self, tensor: torch.Tensor) -> bool:
        if tensor.device.type == "cpu":
            return _memory(tensor) not in self._made
        cell = getattr(tensor.untyped_storage(), "cell", None)
        return active.trace is not None and cell is not None and not active.trace.is_fresh(cell)

    def _see(self, tensors: list[torch.Tensor]) -> None:
        """Refuse an operator on a parameter of which clients train copies."""
        for tensor in tensors:
            memory = _memory(tensor)
            if memory in self._trained:
                raise TraceError(
                    f"the parameter {self._trained[memory]!r} is read from the module that was "
                    "passed to federated.learning, but clients train copies of it.\nIf the loss "
                    "needs parameters, return them from forward; if they should stay as they "
                    "are, read them from copy.deepcopy(module)."
                )

    def _note(self, made: list[torch.Tensor]) -> None:
        """Record tensors over memory that the function has created itself."""
        self._made.update((_memory(tensor), tensor) for tensor in made)


def written_constant() -> TraceError:
    """Returns the error for a write to a tensor from outside, or to its copy, which would be
    lost.
    """
    return TraceError(
        "a local function writes to a tensor from outside, which is a constant for it.\nWrite to "
        "a tensor that the function creates (tensor.clone()), and return it; keep state of a "
        "module that federated.learning trains in a buffer (register_buffer)."
    )


def _is_on_cpu(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _memory(tensor: torch.Tensor) -> int:
    """Returns an identifier of a tensor's memory."""
    if not torch_c.has_storage(tensor):
        return id(tensor)
    return tensor.untyped_storage()._cdata
