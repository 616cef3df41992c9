"""In a process with a single core, or with limited memory, XLA computes in the calling thread.

JAX runs a program in a worker, so that Python can continue meanwhile. On one core nothing runs in
parallel: the two threads take turns, and each switch costs as much as a small program.

In a worker, a program that gets no memory leaves the error in its results, and so do all programs
that compute with those, up to the optimizer's step: the parameters would be lost. In the calling
thread the operator itself raises, before anything has been written.
"""

import os

import jax

from calque.device.runtime import process_limits
from calque.upstream.jax_internals import backends_are_initialized

_FLAG = "jax_cpu_enable_async_dispatch"


def cores() -> int:
    """Returns how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def install() -> None:
    """Set JAX's flag before it creates its devices; later it has no effect."""
    if (cores() == 1 or process_limits.are_set()) and not backends_are_initialized():
        jax.config.update(_FLAG, False)
