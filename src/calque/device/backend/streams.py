"""Streams and events of the device: there is one stream, in whose order JAX runs everything.

XLA orders programs by the arrays they read, and values that the host gets are awaited. So what
PyTorch does with streams (checkpoints copy in one of their own) has nothing to wait for.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

Stream = torch.Stream
Event = torch.Event


def current_stream(device: Any = None) -> torch.Stream:
    """The only stream of the device, as `torch.accelerator.current_stream` gives it."""
    return torch.Stream(torch.device("jax", 0))


default_stream = current_stream


def set_stream(stream: torch.Stream) -> None:
    """Nothing to do: there is one stream."""


def stream(stream: torch.Stream | None) -> AbstractContextManager[Any]:
    """A context in which a stream is current: there is one."""
    return nullcontext()
