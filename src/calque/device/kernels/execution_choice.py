"""Chooses how to execute a kind of eager call: by XLA's executable or, if necessary, by JAX's own
call.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import Sharding
from torch import Tensor

from calque.device.kernels.argument_slots import Viewed, slot_of
from calque.device.memory.cell import cell_of, x64
from calque.device.runtime import precision
from calque.device.runtime.executable import ExecutableCall, execution
from calque.device.runtime.in_flight import settled
from calque.device.runtime.placement import placement_of, run_there, spread, together
from calque.upstream.jax_internals import enable_x64

_PRECISION = ("dot_general", "convolution")  # affected by jax.default_matmul_precision
_swap, _restore = enable_x64.swap_local, enable_x64.set_local


def writing(
    function: Callable[..., Any], target: Tensor, arrays: list[Any], reads: bool
) -> Callable[..., Any]:
    """Returns a function that writes another function's result into a target, and returns the
    target's array.

    It takes that array, the target's start in it, and then the function's own arrays; `reads` says
    whether these include the target's.
    """
    slot = slot_of(target)
    count = 1 + (slot.count if type(slot) is Viewed else 0)
    placement = _lands(target, arrays) if spread.exists else None

    def written(*arrays: Any) -> Any:
        result = function(*arrays[0 if reads else count :])
        if type(slot) is not Viewed:
            return result
        return slot.write(arrays[0], result, list(arrays[1:count]))

    plain = reads and type(slot) is not Viewed and placement is None
    return function if plain else jax.jit(written, keep_unused=True, out_shardings=placement)


def _lands(target: Tensor, arrays: list[Any]) -> Sharding | None:
    """Returns the placement of a program's result that is written into a target."""
    placement, moved = placement_of(cell_of(target).array), list(arrays)
    together(moved)
    return placement if placement is None or run_there(moved, placement) else None


class _Results(NamedTuple):
    """An existing array, in the form of the results of XLA's executable."""

    array: Any

    def consume_with_handlers(self, handlers: Any) -> tuple[Any]:
        return (self.array,)


def serving(function: Callable[..., Any], arrays: list[Any]) -> ExecutableCall:
    """Returns the execution of a function with one result: JAX's own call, or its executable."""
    found = execution_of(function, arrays)
    if found is not None:
        return found

    function = precision.following(function)

    def execute(arrays: list[Any]) -> _Results:
        if spread.exists:
            together(arrays)
        previous = _swap(True)
        try:
            return _Results(settled(function(*arrays)))
        finally:
            _restore(previous)

    return ExecutableCall(execute, None)


def execution_of(
    function: Callable[..., Any], arrays: list[Any], destination: Sharding | None = None
) -> ExecutableCall | None:
    """Returns the execution of a function compiled for some arrays; None if JAX's own call is
    needed.

    Args:
        function: a jitted function.
        arrays: its arguments.
        destination: the placement on whose devices it runs (see `together`).
    """
    lower = getattr(function, "lower", None)
    if lower is None:
        return None
    if spread.exists:
        arrays = list(arrays)
        together(arrays, destination)
    with x64():
        lowered = lower(*arrays)
        text = lowered.as_text()
        if any(name in text for name in _PRECISION):
            return None
        return execution(lowered.compile(), keeps=True)
