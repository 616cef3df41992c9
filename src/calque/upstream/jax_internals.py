"""The private names of JAX that calque uses, each with its purpose.

Everything else of JAX that calque uses is public. Check this module first for a new version of JAX;
a linter rule keeps `jax._src` out of the other modules.
"""

from jax._src import (
    compilation_cache,  # the store of compiled programs
    compiler,  # the one function that compiles a program, which small ones pass with an option
    config,  # the flags' own objects, whose state a thread reads
    core,  # the trace context that an interrupt must not split
    distributed,  # what processes tell each other besides arrays
    pjit,  # its fast path, which must not pass by the lock of one program
    source_info_util,  # the user's line of an equation
    xla_bridge,  # what JAX does in a forked child
)
from jax._src.array import ArrayImpl  # the class of arrays, made without checks
from jax._src.core import (
    InconclusiveDimensionOperation,  # sizes of exported programs that cannot be compared
    eval_context,  # outside of every trace
    is_symbolic_dim,
    jaxprs_in_params,  # the programs within an equation
    max_dim,
    min_dim,
)
from jax._src.interpreters import (
    mlir,  # the contexts in which programs are lowered
    partial_eval,  # the trace that makes a jaxpr, to put an equation into it
    pxla,  # compiled programs as they are called
)
from jax._src.interpreters.pxla import ExecuteReplicated, batched_device_put
from jax._src.lax.lax import _convert_element_type as convert_element_type  # keeps weak types
from jax._src.lib import _jax as extension  # DLPack without a copy, and its lifetime; tracebacks
from jax._src.lib import xla_client  # how long the host's memory is read
from jax._src.sharding_impls import ShardingContext  # over how many devices a program is lowered
from jax._src.xla_bridge import backends_are_initialized

__all__ = [
    "ArrayImpl",
    "CALLBACK_LOGGER",
    "ExecuteReplicated",
    "InconclusiveDimensionOperation",
    "ShardingContext",
    "backends_are_initialized",
    "batched_device_put",
    "compilation_cache",
    "compiler",
    "config",
    "convert_element_type",
    "core",
    "debug_infs",
    "debug_nans",
    "enable_x64",
    "eval_context",
    "extension",
    "is_symbolic_dim",
    "jaxprs_in_params",
    "max_dim",
    "min_dim",
    "mlir",
    "partial_eval",
    "pjit",
    "pxla",
    "source_info_util",
    "xla_bridge",
    "xla_client",
]

debug_infs: config.State = config.debug_infs  # whether JAX checks what programs compute
debug_nans: config.State = config.debug_nans
enable_x64: config.State = config.enable_x64  # a context manager, and the flag of this thread

CALLBACK_LOGGER = "jax._src.callback"
"""Where JAX logs what a callback raised."""
