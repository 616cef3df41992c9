"""Call a compiled program without JAX's own check of every argument.

`jax.stages.Compiled` looks at the shape, dtype and sharding of each argument at each call; a
program's guards have seen to them already. With some hundred arrays of state that check is a fifth
of what a call costs the host.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array
from jax._src.interpreters.pxla import ExecuteReplicated, batched_device_put

Call = Callable[[list[Any]], list[Array]]


def direct(compiled: jax.stages.Compiled, numbers: list[int]) -> Call:
    """A function from all arguments of a compiled program to its results, both flat.

    JAX's own call is used where more than the arrays go in or come out (effects, callbacks), where
    there is more than one device to be on, and for releases of JAX that are built another way.

    Args:
        compiled: the program, its arguments and results flat.
        numbers: the indexes of the arguments that come as numpy values; the others are arrays on
            the device. The list of arguments belongs to the callee.
    """
    try:
        run = _execution(compiled)
    except AttributeError:
        run = None
    if run is None:
        return lambda arguments: compiled(*arguments)
    execute, handlers = run
    placed = [(index, _Placed(compiled, index)) for index in numbers]

    def call(arguments: list[Any]) -> list[Array]:
        if jax.config.jax_debug_nans or jax.config.jax_debug_infs:
            return compiled(*arguments)
        for index, place in placed:
            arguments[index] = place(arguments[index])
        return execute(arguments).consume_with_handlers(handlers)

    return call


def _execution(compiled: Any) -> tuple[Any, Any] | None:
    program = compiled._executable.unsafe_call
    if jax.device_count() != 1 or type(program) is not ExecuteReplicated or program.mut is not None:
        return None
    if program.ordered_effects or program.has_unordered_effects or program.has_host_callbacks:
        return None
    if len(program.kept_var_idx) != len(compiled.in_avals[0]):
        return None
    return program.xla_executable.execute_sharded, program.out_handler.handlers


class _Placed:
    """Numpy values of one argument as arrays on the device; the last one is kept."""

    def __init__(self, compiled: Any, index: int) -> None:
        self._aval = compiled.in_avals[0][index]
        self._sharding = compiled._executable.unsafe_call.in_handler.in_shardings[index]
        self._devices = jax.devices()
        self._bytes: bytes | None = None
        self._array: Any = None

    def __call__(self, value: np.ndarray | np.generic) -> Array:
        data = value.tobytes()
        if data != self._bytes:
            values = [np.asarray(value)]
            self._array = batched_device_put(self._aval, self._sharding, values, self._devices)
            self._bytes = data
        return self._array
