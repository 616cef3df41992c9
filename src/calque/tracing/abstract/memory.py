"""Caches of the abstract values that a thread's earlier traces have computed.

Layers of the same geometry are computed once, whatever model they are in.
"""

import threading
from typing import Any

import torch

from calque.tracing.abstract.fakes import AbstractMode

_MOST = 4096
"""The number of calls to remember before all are forgotten."""


class CallMemory:
    """The calls made on abstract values of one mode.

    Attributes:
        members: the abstract values of parameters and buffers, by geometry.
        results: the abstract values of results, by geometry.
        calls: the result of each call, and the abstract values that its key identifies by `id`.
    """

    def __init__(self) -> None:
        self.mode: AbstractMode = AbstractMode()
        self.members: dict[Any, torch.Tensor] = {}
        self.results: dict[Any, list[torch.Tensor]] = {}
        self.calls: dict[Any, tuple[Any, Any]] = {}


class _OfThread(threading.local):
    memory: CallMemory | None = None


_here = _OfThread()


def remembered() -> CallMemory:
    """Returns the memory of the thread; a new one if it is full."""
    known = _here.memory
    if known is None or len(known.calls) > _MOST:
        known = _here.memory = CallMemory()
    return known


def forget() -> None:
    """Clear the cache for the thread's next trace."""
    _here.memory = None
