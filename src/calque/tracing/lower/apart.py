"""`make_fx` runs apart from other threads, and from the caller's random numbers and modes."""

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
    """`make_fx` is for one thread at a time, and replaces names for all of them.

    It puts back what it found; that must not be what a trace of ours, in another thread, has put
    there meanwhile. So ours are there before it begins and until it ends.
    """
    with _lock, suspended(), Patches() as patches:
        hold_modules(patches)
        LeafFunctions(patches, ()).hold_registered()
        yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Random numbers drawn and modes set by the replay are none of the caller's."""
    grad = torch_c.is_grad_enabled()
    try:
        with torch.random.fork_rng(devices=()):
            yield
    finally:
        torch_c.set_grad_enabled(grad)
