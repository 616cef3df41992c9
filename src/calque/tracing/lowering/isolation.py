"""Isolates `make_fx` from other threads, and from the caller's random numbers and modes."""

import contextlib
import threading
from collections.abc import Iterator

import torch

from calque.tracing.core.active import suspended
from calque.tracing.core.patching import Patches
from calque.tracing.proxies.modules import hold_modules
from calque.tracing.proxies.wrapping import LeafFunctions
from calque.upstream import torch_c

_lock = threading.RLock()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A context manager for `make_fx`, which works in one thread at a time and patches names
    globally.

    At its end, `make_fx` restores the names that it found, which must not remove the patches of a
    trace in another thread. So the patches are in place from before it begins until it ends.
    """
    with _lock, suspended(), Patches() as patches:
        hold_modules(patches)
        LeafFunctions(patches, ()).hold_registered()
        yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A context manager that restores random state and modes that the replay changes."""
    grad = torch_c.is_grad_enabled()
    try:
        with torch.random.fork_rng(devices=()):
            yield
    finally:
        torch_c.set_grad_enabled(grad)
