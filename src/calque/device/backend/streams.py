"""Streams and events of the device. It has one stream, in JAX's order of execution.

XLA orders programs by their data dependencies, and reads by the host wait for the values. So
PyTorch's uses of streams (checkpoints copy in a separate one) need no synchronization.
"""

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import torch


class Stream(torch.Stream):
    """The only stream of the device.

    Raises:
        RuntimeError: `device` is a different device.
    """

    def __new__(cls, device: Any = None, priority: int = 0, **_: Any) -> "Stream":
        where = torch.device("jax" if device is None else device)
        if where.type != "jax" or where.index not in (None, 0):
            raise RuntimeError(f"a stream of the jax device cannot belong to {where}")
        return super().__new__(cls, torch.device("jax", 0))


class Event(torch.Event):
    """An event of the device's only stream.

    Args:
        enable_timing: whether `elapsed_time` will be called. If so, `record` waits for all work
            submitted before, because JAX does not report when it was done.
    """

    def __new__(cls, enable_timing: bool = False, *_: Any, **__: Any) -> "Event":
        event = super().__new__(cls, "jax", enable_timing=enable_timing)
        event._is_timed = enable_timing
        event._recorded = None
        return event

    _is_timed: bool
    _recorded: float | None

    def record(self, stream: object = None) -> None:
        """For a timed event, waits for all work submitted so far, and stores the time."""
        super().record()
        if self._is_timed:
            synchronize()
            self._recorded = time.perf_counter()

    def wait(self, stream: object = None) -> None:
        """Does nothing, because there is one stream."""

    def synchronize(self) -> None:
        """Waits until all work submitted so far is done."""
        synchronize()

    def elapsed_time(self, end_event: "Event") -> float:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns the milliseconds between two recorded events.

        Raises:
            RuntimeError: one of them is not timed, or has not been recorded.
        """
        if not (self._is_timed and getattr(end_event, "_is_timed", False)):
            raise RuntimeError("both must be events of torch.jax with enable_timing=True")
        if self._recorded is None or end_event._recorded is None:
            raise RuntimeError("both events must be recorded before elapsed_time is called")
        return (end_event._recorded - self._recorded) * 1e3


def synchronize(device: object = None) -> None:
    """Waits until all work submitted to JAX's devices so far is done.

    What a traced function has computed so far is not submitted before the trace ends.
    """
    with jax.ensure_compile_time_eval():
        for one in jax.local_devices():
            jax.device_put(0, one).block_until_ready()
    jax.effects_barrier()


def current_stream(device: object = None) -> torch.Stream:
    """Returns the only stream of the device, for `torch.accelerator.current_stream`."""
    return Stream(device)


default_stream = current_stream


def set_stream(stream: torch.Stream) -> None:
    """Does nothing, because there is one stream."""


def stream(stream: torch.Stream | None) -> AbstractContextManager[Any]:
    """A context manager that sets the current stream, of which there is only one."""
    return nullcontext()


def record_stream(tensor: torch.Tensor, stream: torch.Stream) -> None:
    """`Tensor.record_stream` does nothing, because JAX keeps memory until no program needs it."""


def kernels() -> dict[str, Any]:
    """Returns the kernels of this module by operator name."""
    return {"record_stream": record_stream}
