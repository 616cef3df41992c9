"""What of JAX's compiled programs can be called without JAX's own look at every argument.

`jax.stages.Compiled` checks the shape, dtype and sharding of each argument at each call, and
`jax.jit` the whole configuration. Who has seen to that already calls XLA's executable itself.
"""

from typing import Any, NamedTuple

import jax
from jax._src.config import debug_infs, debug_nans
from jax._src.interpreters.pxla import ExecuteReplicated


class Execution(NamedTuple):
    """XLA's executable, and what makes arrays of its results.

    `execute(arrays).consume_with_handlers(handlers)` is the list of all results.
    """

    execute: Any
    handlers: Any


def execution(compiled: jax.stages.Compiled) -> Execution | None:
    """How to execute a program on a flat list of its arguments.

    None where more than the arrays goes in or comes out (effects, callbacks, arguments dropped),
    where there is more than one device to be on, and for releases of JAX built another way.
    """
    try:
        program: Any = compiled._executable.unsafe_call  # type: ignore[attr-defined]
        if type(program) is not ExecuteReplicated or program.mut is not None:
            return None
        if program.ordered_effects or program.has_unordered_effects or program.has_host_callbacks:
            return None
        complete = len(program.kept_var_idx) == len(compiled.in_avals[0])
        if not complete or jax.device_count() != 1:
            return None
        return Execution(program.xla_executable.execute_sharded, program.out_handler.handlers)
    except AttributeError:
        return None


def calls_back(lowered: jax.stages.Lowered) -> bool:
    """Whether a program calls Python functions."""
    return bool(lowered._lowering.compile_args["host_callbacks"])  # type: ignore[attr-defined]


def debugging() -> bool:
    """Whether every call must be JAX's own: it is asked to look at the results, or to refuse."""
    return _refusing or debug_nans.value or debug_infs.value


_refusing = False


def refuse() -> None:
    """Execute nothing any more but by JAX's own calls, which `device.backend.forks` refuses."""
    global _refusing
    _refusing = True
