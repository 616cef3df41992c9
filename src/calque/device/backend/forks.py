"""Refuses the device in forked processes, which lack XLA's threads and would hang.

Like CUDA tensors, the device's tensors raise in a child that was forked after JAX had started, and
so do compiled functions. A data loader whose workers create only CPU tensors is not affected.
"""

import atexit
import ctypes
import os
import sys
from typing import NoReturn

import torch.utils.data

from calque.device.memory.cell import active, x64
from calque.device.runtime import executable
from calque.upstream.jax_internals import clean_up, mlir, xla_bridge

_LOADER = os.path.join("torch", "utils", "data", "dataloader.py")


class _State:
    bad_fork = False


def is_bad() -> bool:
    """Returns True if this process was forked after JAX had started."""
    return _State.bad_fork


class _Refusal:
    """Replaces the trace, and raises for any operation."""

    def __getattr__(self, name: str) -> NoReturn:
        refuse()


def refuse(*_: object) -> NoReturn:
    """Raise the error for using the device in a forked process."""
    raise RuntimeError(
        "the jax device cannot be used in a process that was forked after the device was first "
        f"used: {_remedy()}"
    )


def _remedy() -> str:
    """Returns the remedy for a forked process, depending on what forked it."""
    if torch.utils.data.get_worker_info() is None:
        return "start the process with the 'spawn' method, or use only CPU tensors in it"
    return (
        "in a DataLoader's workers, let the dataset and collate_fn make CPU tensors, and move the "
        'batch in the training loop: `batch.to("jax")`'
    )


def _after_fork() -> None:
    if xla_bridge.backends_are_initialized():
        _State.bad_fork = True
        # Every operator reads the trace or enters `x64`, so these checks cost nothing extra.
        type(active).trace = _Refusal()
        active.__dict__.pop("trace", None)  # for the one remaining thread
        executable.refuse()
        x64.__enter__ = refuse  # type: ignore[method-assign]
        _keep_threads()


def _keep_threads() -> None:
    """Keep what has threads until the process ends: deleting it waits for them, and none exists
    here, so that `sys.exit` would hang or abort.
    """
    atexit.unregister(clean_up)
    for kept in (mlir.global_thread_pool, *xla_bridge._backends.values()):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _is_loaders() -> bool:
    """Returns True if a `DataLoader` forks, whose workers usually create only CPU tensors."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith(_LOADER):
            return True
        frame = frame.f_back
    return False


def install() -> None:
    """Register a callback for forks, and silence JAX's warning for those of a `DataLoader`."""
    os.register_at_fork(after_in_child=_after_fork)
    theirs = xla_bridge._at_fork

    def at_fork() -> None:
        if not _is_loaders():
            theirs()

    xla_bridge._at_fork = at_fork
