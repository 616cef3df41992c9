"""In a process with a single core, XLA computes in the calling thread.

JAX runs a program in a worker, so that Python can continue meanwhile. On one core nothing runs in
parallel: the two threads take turns, and each switch costs as much as a small program.
"""

import os

import jax

from calque.upstream.jax_internals import backends_are_initialized

_FLAG = "jax_cpu_enable_async_dispatch"


def cores() -> int:
    """Returns how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def install() -> None:
    """Set JAX's flag before it creates its devices; later it has no effect."""
    if cores() == 1 and not backends_are_initialized():
        jax.config.update(_FLAG, False)
