"""The private names of JAX that calque uses, each with its purpose.

Everything else that calque uses of JAX is public. Check this module first for a new version of JAX;
a linter rule forbids `jax._src` in other modules.
"""

from typing import Any

from jax._src import (
    compilation_cache,  # the store of compiled programs
    compiler,  # the one function that compiles a program, which small ones pass with an option
    config,  # the flags' own objects, whose state a thread reads
    core,  # the trace context that an interrupt must not split
    distributed,  # what processes tell each other besides arrays
    pjit,  # its fast path, which must not pass by the lock of one program
    source_info_util,  # the user's line of an equation
    xla_bridge,  # JAX's handler in a forked child
)
from jax._src.api import clean_up  # deletes XLA's clients when Python exits
from jax._src.array import ArrayImpl  # creates arrays without checks
from jax._src.core import (
    InconclusiveDimensionOperation,  # raised for incomparable symbolic sizes
    eval_context,  # leaves every trace
    is_symbolic_dim,
    jaxprs_in_params,  # the subprograms of an equation
    max_dim,
    min_dim,
)
from jax._src.extend import random as extend_random  # `jax.extend` imports all of Pallas
from jax._src.interpreters import (
    mlir,  # contexts for lowering
    partial_eval,  # the jaxpr trace, to add equations
    pxla,  # the executables that calls run
)
from jax._src.interpreters.pxla import ExecuteReplicated, batched_device_put
from jax._src.lax.lax import _convert_element_type as convert_element_type  # can keep weak types
from jax._src.lib import _jax as extension  # DLPack without copies, tracebacks
from jax._src.lib import xla_client  # for how long host memory is read
from jax._src.sharding_impls import ShardingContext  # the device count of lowering
from jax._src.xla_bridge import backends_are_initialized

__all__ = [
    "ArrayImpl",
    "CALLBACK_LOGGER",
    "ExecuteReplicated",
    "InconclusiveDimensionOperation",
    "ShardingContext",
    "backends_are_initialized",
    "batched_device_put",
    "clean_up",
    "compilation_cache",
    "compiler",
    "config",
    "convert_element_type",
    "core",
    "debug_infs",
    "debug_nans",
    "enable_x64",
    "eval_context",
    "extend_random",
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
    "threefry",
    "xla_bridge",
    "xla_client",
]

debug_infs: config.State = config.debug_infs  # whether JAX checks results
debug_nans: config.State = config.debug_nans
threefry: Any = extend_random.prng.prngs["threefry2x32"]  # the functions of JAX's own keys
enable_x64: config.State = config.enable_x64  # a context manager, and the flag of this thread

CALLBACK_LOGGER = "jax._src.callback"
"""The logger for exceptions that callbacks raise."""
