"""Calls JAX's compiled programs without JAX's own check of every argument.

`jax.stages.Compiled` checks the shape, dtype and sharding of each argument at each call, and
`jax.jit` checks the whole configuration. Callers that have already checked these call XLA's
executable directly.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

import jax

from calque.device.runtime import one_program
from calque.device.runtime.in_flight import communicates, is_crowded, waiting
from calque.device.runtime.placement import is_same, placed, spread
from calque.upstream.jax_internals import ExecuteReplicated, debug_infs, debug_nans

_SMALL = 1024  # bytes
sharding_of: Callable[[Any], Any] = attrgetter("sharding")


class ExecutableCall(NamedTuple):
    """XLA's executable, and the functions that turn its results into arrays.

    `execute(arrays).consume_with_handlers(handlers)` returns the list of all results.
    """

    execute: Any
    handlers: Any


def execution(compiled: jax.stages.Compiled, keeps: bool = False) -> ExecutableCall | None:
    """Returns the execution of a program on a flat list of its arguments.

    Returns None if the program has other inputs or outputs than the arrays (effects, callbacks,
    dropped arguments), if every call must wait (`one_program`), and for JAX releases with different
    internals.

    Args:
        compiled: the program.
        keeps: whether to keep small arrays that were moved to the program's devices for the next
            call. Use it only if the program donates no memory.
    """
    if one_program.is_installed():
        return None
    try:
        program: Any = compiled._executable.unsafe_call  # type: ignore[attr-defined]
        if type(program) is not ExecuteReplicated or program.mut is not None:
            return None
        if program.ordered_effects or program.has_unordered_effects or program.has_host_callbacks:
            return None
        if len(program.kept_var_idx) != len(compiled.in_avals[0]):
            return None
        execute, handlers = program.xla_executable.execute_sharded, program.out_handler.handlers
        if jax.device_count() == 1:
            return ExecutableCall(execute, handlers)
        shardings = list(program.in_handler.in_shardings)
        is_spread = any(s.num_devices > 1 for s in (*shardings, *_given(program)))
        if is_spread:
            spread.exists = True
        if is_spread and is_crowded() and communicates(compiled):
            handlers = waiting(handlers, program.out_handler.out_shardings)
        return ExecutableCall(OnDevices(execute, shardings, keeps), handlers)
    except AttributeError:
        return None


def _given(program: Any) -> list[Any]:
    """Returns the shardings of a program's results."""
    return [handler.sharding for handler in program.out_handler.handlers if _has_sharding(handler)]


def _has_sharding(handler: object) -> bool:
    return hasattr(handler, "sharding")


class OnDevices:
    """Executes a program if there are several devices, moving each array to the right ones.

    Args:
        execute: XLA's executable.
        shardings: the shardings of its arguments.
        keeps: see `execution`.

    Attributes:
        execute: runs the program on arrays that have been moved (see `move`).
    """

    def __init__(self, execute: Any, shardings: list[Any], keeps: bool) -> None:
        self.execute: Any = execute
        self._shardings = shardings
        self._keeps = keeps
        self._seen: list[Any] = []
        self._astray: list[int] = []
        self._kept: dict[int, tuple[Any, Any]] = {}

    def __call__(self, arrays: list[Any]) -> Any:
        self.place(arrays)
        return self.execute(arrays)

    def place(self, arrays: list[Any]) -> None:
        """Replace arrays that are on other devices."""
        found = [*map(sharding_of, arrays)]
        if found != self._seen:  # a list comparison checks identities first
            self._astray = self._look(arrays, found)
        self._seen = found
        for index in self._astray:
            arrays[index] = self._moved(index, arrays[index])

    def move(self, arrays: list[Any], found: list[Any]) -> bool:
        """Replace arrays that are on other devices; returns True if there are any.

        Args:
            arrays: the arguments.
            found: their shardings.
        """
        astray = self._look(arrays, found)
        for index in astray:
            arrays[index] = self._moved(index, arrays[index])
        return bool(astray)

    def _look(self, arrays: list[Any], found: list[Any]) -> list[int]:
        wanted = zip(arrays, found, self._shardings, strict=True)
        return [i for i, (a, f, w) in enumerate(wanted) if not is_same(f, w, a.ndim)]

    def _moved(self, index: int, array: Any) -> Any:
        kept = self._kept.get(index)
        if kept is not None and kept[0] is array:
            return kept[1]
        moved = placed(array, self._shardings[index])
        if self._keeps and array.nbytes <= _SMALL:
            self._kept[index] = array, moved
        return moved


def calls_back(lowered: jax.stages.Lowered) -> bool:
    """Returns True if a program calls Python functions."""
    return bool(lowered._lowering.compile_args["host_callbacks"])  # type: ignore[attr-defined]


def devices_of(lowered: jax.stages.Lowered) -> Any:
    """Returns the devices of a program, in the order of its mesh."""
    found = lowered._lowering.compile_args.get("device_assignment")  # type: ignore[attr-defined]
    return None if found is None else tuple(device.id for device in found)


def debugging() -> bool:
    """Returns True if every call must be JAX's own, to check results or to refuse."""
    return refusal.is_on or debug_nans.value or debug_infs.value


class _Refusal:
    is_on = False


refusal: _Refusal = _Refusal()
DEBUGGING: tuple[tuple[str, Any], ...] = (
    ("{}.is_on", refusal),
    ("{}.value", debug_nans),
    ("{}.value", debug_infs),
)
"""The conditions of `debugging`, as text with the objects."""


def refuse() -> None:
    """Use only JAX's own calls from now on, which `device.backend.forks` refuses."""
    refusal.is_on = True
