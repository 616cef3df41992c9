"""Makes XLA compute in the calling thread if a process has a single core or limited memory.

JAX runs programs in a worker thread, so that Python can continue. On one core, nothing runs in
parallel, and each switch between the two threads costs as much as a small program.

In a worker, a program that runs out of memory leaves the error in its results, and so do all
programs that use these, including the optimizer's step: the parameters would be lost. In the
calling thread, the operator itself raises before anything is written.
"""

import os

import jax

from calque.device.runtime import process_limits
from calque.upstream.jax_internals import backends_are_initialized

_FLAG = "jax_cpu_enable_async_dispatch"


def cores() -> int:
    """Returns the number of cores on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def install() -> None:
    """Set JAX's flag, which has an effect only before JAX creates its devices."""
    if (cores() == 1 or process_limits.are_set()) and not backends_are_initialized():
        jax.config.update(_FLAG, False)
