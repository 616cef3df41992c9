"""Makes XLA compute in the calling thread if a process has a single core or limited memory.

JAX runs programs in a worker thread, so that Python can continue. On one core, nothing runs in
parallel, and each switch between the two threads costs as much as a small program.

In a worker, a program that runs out of memory leaves the error in its results, and so do all
programs that use these, including the optimizer's step: the parameters would be lost. In the
calling thread, the operator itself raises before anything is written.
"""

import functools
import os
from typing import Any

import jax

from calque.device.runtime import process_limits
from calque.upstream.jax_internals import xla_bridge

_FLAG = "jax_cpu_enable_async_dispatch"


def cores() -> int:
    """Returns the number of cores on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def install() -> None:
    """Set JAX's flag, now or when it creates its CPU devices; later it has no effect.

    A limit of the memory counts that is set until then, and so after the import of calque, too.
    """
    if cores() == 1 and not xla_bridge.backends_are_initialized():
        jax.config.update(_FLAG, False)
    registered: Any = xla_bridge._backend_factories.get("cpu")
    if registered is None:
        return
    create = registered.factory

    @functools.wraps(create)
    def create_within_limits(*args: Any, **kwargs: Any) -> Any:
        if process_limits.are_set():
            jax.config.update(_FLAG, False)
        return create(*args, **kwargs)

    registered.factory = create_within_limits
