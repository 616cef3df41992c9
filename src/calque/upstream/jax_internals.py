"""The private names of JAX that calque uses, each with its purpose.

Everything else that calque uses of JAX is public. Check this module first for a new version of JAX;
a linter rule forbids `jax._src` in other modules.
"""

from jax._src import (
    compilation_cache,  # the persistent cache of compiled programs
    config,  # the state objects of flags, for reads per thread
    core,  # the trace context, which must be set atomically
    distributed,  # the key-value store of connected processes
    pjit,  # its C++ fast path, which would bypass our locks
    source_info_util,  # the user's line of an equation
    xla_bridge,  # JAX's handler in a forked child
)
from jax._src.array import ArrayImpl  # creates arrays without checks
from jax._src.core import (
    InconclusiveDimensionOperation,  # raised for incomparable symbolic sizes
    eval_context,  # leaves every trace
    is_symbolic_dim,
    jaxprs_in_params,  # the subprograms of an equation
    max_dim,
    min_dim,
)
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
    "compilation_cache",
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

debug_infs: config.State = config.debug_infs  # whether JAX checks results
debug_nans: config.State = config.debug_nans
enable_x64: config.State = config.enable_x64  # a context manager, and the flag of this thread

CALLBACK_LOGGER = "jax._src.callback"
"""The logger for exceptions that callbacks raise."""
