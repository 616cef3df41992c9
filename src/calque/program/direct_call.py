"""Calls a compiled program of `calque.jit` without JAX's own check of every argument.

A program's guards have already checked the arguments. With a few hundred arrays of state, JAX's
check is a fifth of the host's time for a call.
"""

from collections.abc import Callable, Iterator
from operator import methodcaller
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.extend.mlir.ir import WalkResult

from calque.device.memory.cell import x64
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
from calque.program.compiler_options import Options, compile_with
from calque.upstream.jax_internals import batched_device_put

_WRITTEN_BY_NO_KERNEL = frozenset(("stablehlo.broadcast_in_dim", "stablehlo.reshape"))

Call = Callable[[list[Any]], list[Array]]


class Direct(NamedTuple):
    """A compiled program that can be called.

    Attributes:
        call: from all arguments to the results, both flat. The list belongs to the callee.
        start: as `call`, but gives an iterator: the program runs when that is asked for the
            results, its only item. Where JAX's call is not needed, no line of Python runs then.
        bare: what they consist of; None where JAX's own call is needed.
    """

    call: Call
    start: Callable[[list[Any]], Iterator[list[Array]]]
    bare: "Bare | None" = None


class Bare(NamedTuple):
    """XLA's executable itself; only while not `debugging`.

    Attributes:
        execute: starts it with a list of arrays.
        consume: gives the arrays of what `execute` has returned.
        placed: for the arguments that come as numpy values their index, and what makes arrays of
            them.
    """

    execute: Callable[[list[Any]], Any]
    consume: Callable[[Any], list[Array]]
    placed: list[tuple[int, Callable[[Any], Array]]]


def compile_checked(
    lowered: jax.stages.Lowered, options: Options | None = None
) -> jax.stages.Compiled:
    """Compiles a lowered program, after checking its results' sizes, which could crash XLA.

    Args:
        lowered: the program.
        options: for XLA (see `compiler_options`).

    Raises:
        torch.OutOfMemoryError: a result alone is larger than the device's memory; or a part of the
            program that XLA would end the process for.
    """
    for result in jax.tree.leaves(lowered.out_info):
        check_fits(result.shape, result.dtype.itemsize)
    if fatal_seen() and jax.default_backend() == "cpu":
        _check_parts(lowered.compiler_ir("stablehlo"))
    return compile_with(lowered, options or {})


def _check_parts(module: Any) -> None:
    """Raise for an operation that XLA would end the process for, were its result a kernel's."""
    found: list[Any] = []

    def look(operation: Any) -> Any:
        name = operation.name
        if name.startswith("stablehlo.") and name not in _WRITTEN_BY_NO_KERNEL:
            shapes = (getattr(result.type, "shape", ()) for result in operation.results)
            found.extend(filter(is_fatal, shapes))
        return WalkResult.INTERRUPT if found else WalkResult.ADVANCE

    module.operation.walk(look)  # an error in there would be one of MLIR's
    if found:
        refuse_fatal(found[0])


def direct(compiled: jax.stages.Compiled, numbers: list[int]) -> Direct:
    """Returns a compiled program for calls with valid arguments.

    JAX's own call is used where `calque.device.runtime.executable` has no other.

    Args:
        compiled: the program, its arguments and results flat.
        numbers: the indexes of the arguments that come as numpy values; the others are arrays on
            the device. The list of arguments belongs to the callee.

    Raises:
        torch.OutOfMemoryError: when called, as soon as XLA finds too little memory.
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

    return Direct(call, start, Bare(execute, consume, placed))


class _Placed:
    """Moves NumPy values of one argument to the device, and keeps the last one."""

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
