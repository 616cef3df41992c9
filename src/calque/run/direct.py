"""Call a compiled program of `calque.jit` without JAX's own check of every argument.

A program's guards have seen to the arguments already. With some hundred arrays of state JAX's check
is a fifth of what a call costs the host.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array
from jax._src.interpreters.pxla import batched_device_put

from calque.device.cell import x64
from calque.device.executable import debugging, execution

Call = Callable[[list[Any]], list[Array]]


def direct(compiled: jax.stages.Compiled, numbers: list[int]) -> Call:
    """A function from all arguments of a compiled program to its results, both flat.

    JAX's own call is used where `calque.device.executable` has no other.

    Args:
        compiled: the program, its arguments and results flat.
        numbers: the indexes of the arguments that come as numpy values; the others are arrays on
            the device. The list of arguments belongs to the callee.
    """

    def by_jax(arguments: list[Any]) -> list[Array]:
        with x64():
            return compiled(*arguments)

    run = execution(compiled)
    if run is None:
        return by_jax
    execute, handlers = run
    placed = [(index, _Placed(compiled, index)) for index in numbers]

    def call(arguments: list[Any]) -> list[Array]:
        if debugging():
            return by_jax(arguments)
        for index, place in placed:
            arguments[index] = place(arguments[index])
        return execute(arguments).consume_with_handlers(handlers)

    return call


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
            with x64():
                self._array = batched_device_put(self._aval, self._sharding, values, self._devices)
            self._bytes = data
        return self._array
