"""Calls a jitted program without JAX's own check of every argument.

A program's guards have already checked the arguments. With a few hundred arrays of state, JAX's
check takes a fifth of a call's host time.
"""

from collections.abc import Callable, Iterator
from operator import methodcaller
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.extend.mlir.ir import WalkResult

from calque.device.memory.cell import x64
from calque.device.runtime.code_generation import Options
from calque.device.runtime.executable import OnDevices, debugging, execution
from calque.device.runtime.in_flight import settled
from calque.device.runtime.sizes import (
    as_out_of_memory,
    check_fits,
    fatal_seen,
    is_fatal,
    refuse_fatal,
    translated,
)
from calque.upstream.jax_internals import batched_device_put

_WRITTEN_BY_NO_KERNEL = frozenset(("stablehlo.broadcast_in_dim", "stablehlo.reshape"))

Call = Callable[[list[Any]], list[Array]]


class Direct(NamedTuple):
    """A compiled program that can be called.

    Attributes:
        call: a function from the flat list of arguments, which it may change, to the flat list of
            results.
        start: like `call`, but returns an iterator, which runs the program and yields the results
            as its only item. If JAX's call is not needed, it runs no Python code.
        bare: the executable behind both; None if JAX's own call is needed.
    """

    call: Call
    start: Callable[[list[Any]], Iterator[list[Array]]]
    bare: "RawExecutable | None" = None


class RawExecutable(NamedTuple):
    """XLA's executable itself, to be used only while not `debugging`.

    Attributes:
        execute: runs it with a list of arrays.
        consume: returns the arrays for the result of `execute`.
        placed: for each argument that is passed as a NumPy value, its index and a function that
            converts it to an array.
    """

    execute: Callable[[list[Any]], Any]
    consume: Callable[[Any], list[Array]]
    placed: list[tuple[int, Callable[[Any], Array]]]


def compile_checked(
    lowered: jax.stages.Lowered, options: Options | None = None
) -> jax.stages.Compiled:
    """Compiles a lowered program, after checking sizes that could crash XLA.

    Args:
        lowered: the program.
        options: options for XLA (see `compiler_options`).

    Raises:
        torch.OutOfMemoryError: a single result is larger than the device's memory, or the size of a
            part of the program would crash XLA.
    """
    for result in jax.tree.leaves(lowered.out_info):
        check_fits(result.shape, result.dtype.itemsize)
    if fatal_seen() and jax.default_backend() == "cpu":
        _check_parts(lowered.compiler_ir("stablehlo"))
    with translated():  # GPUs try kernels, which needs memory
        return lowered.compile(compiler_options=options or None)


def _check_parts(module: Any) -> None:
    """Raise for an operation whose size would crash XLA if a kernel wrote its result."""
    found: list[Any] = []

    def look(operation: Any) -> Any:
        name = operation.name
        if name.startswith("stablehlo.") and name not in _WRITTEN_BY_NO_KERNEL:
            shapes = (getattr(result.type, "shape", ()) for result in operation.results)
            found.extend(filter(is_fatal, shapes))
        return WalkResult.INTERRUPT if found else WalkResult.ADVANCE

    module.operation.walk(look)  # raise outside, because MLIR would replace an error inside
    if found:
        refuse_fatal(found[0])


def direct(compiled: jax.stages.Compiled, numbers: list[int]) -> Direct:
    """Returns a compiled program for calls with valid arguments.

    JAX's own call is used if `calque.device.runtime.executable` does not support the program.

    Args:
        compiled: the program, with flat arguments and results.
        numbers: the indexes of the arguments that are passed as NumPy values; the others are arrays
            on the device.

    Raises:
        torch.OutOfMemoryError: when called, if XLA finds too little memory.
    """

    def by_jax(arguments: list[Any]) -> list[Array]:
        with translated(), x64():
            return settled(compiled(*arguments))

    run = execution(compiled)
    if run is None:
        return Direct(by_jax, lambda arguments: map(by_jax, (arguments,)))
    execute, handlers = run
    consume = methodcaller("consume_with_handlers", handlers)
    there = execute if isinstance(execute, OnDevices) else None
    placed: Any = [(index, _Placed(compiled, index)) for index in numbers]

    def call(arguments: list[Any]) -> list[Array]:
        if debugging():
            return by_jax(arguments)
        for index, place in placed:
            arguments[index] = place(arguments[index])
        try:
            return execute(arguments).consume_with_handlers(handlers)
        except jax.errors.JaxRuntimeError as error:
            raise as_out_of_memory(error) from None

    def start(arguments: list[Any]) -> Iterator[list[Array]]:
        if debugging():
            return map(by_jax, (arguments,))
        for index, place in placed:
            arguments[index] = place(arguments[index])
        if there is None:
            return map(consume, map(execute, (arguments,)))
        there.place(arguments)
        return map(consume, map(there.execute, (arguments,)))

    return Direct(call, start, RawExecutable(execute, consume, placed))


class _Placed:
    """Moves the NumPy values of one argument to the device, and caches the last one."""

    def __init__(self, compiled: Any, index: int) -> None:
        self._aval = compiled.in_avals[0][index]
        self._sharding = compiled._executable.unsafe_call.in_handler.in_shardings[index]
        self._devices = self._sharding._addressable_device_assignment
        self._bytes: bytes | None = None
        self._array: Any = None

    def __call__(self, value: np.ndarray | np.generic) -> Array:
        data = value.tobytes()
        if data != self._bytes:
            values = [np.asarray(value)] * len(self._devices)
            with x64():
                self._array = batched_device_put(self._aval, self._sharding, values, self._devices)
            self._bytes = data
        return self._array
