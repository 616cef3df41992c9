"""Checks that there is enough memory for a program before it starts."""

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

import jax
import torch

from calque.device.runtime import process_limits
from calque.device.runtime.sizes import byte_count


class Need:
    """The memory that a program needs in addition to its arguments.

    Attributes:
        is_too_large: whether it exceeds the device's total memory.
        is_tight: returns True if less memory is currently left; None if this is not known.
    """

    def __init__(self, compiled: jax.stages.Compiled) -> None:
        self._bytes = _of(compiled)
        self.is_too_large: bool = self._bytes > _total()
        left = _left()
        self.is_tight: Callable[[], bool] | None = None
        if left is not None:
            self.is_tight = lambda: left() < self._bytes

    def refuse(self, _: Any) -> NoReturn:
        """Raises instead of calling a program that is too large."""
        raise torch.OutOfMemoryError(
            f"jax out of memory. The program needs {byte_count(self._bytes)} besides its "
            "arguments; "
            f"the device has {byte_count(_total())} in all."
        )


def _of(compiled: jax.stages.Compiled) -> int:
    found: Any = compiled.memory_analysis()
    if found is None:
        return 0
    return found.temp_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes


@cache
def _total() -> float:
    """Returns the device's total bytes; for a CPU, those of the machine."""
    device = jax.local_devices()[0]
    limit = (device.memory_stats() or {}).get("bytes_limit")
    if limit is None and device.platform == "cpu":
        limit = _of_machine()
    return limit or float("inf")


def _of_machine() -> int | None:
    try:
        with open("/proc/meminfo") as lines:
            sizes = dict(line.split(":", 1) for line in lines)
        return sum(int(sizes[name].split()[0]) * 1024 for name in ("MemTotal", "SwapTotal"))
    except (OSError, KeyError, ValueError):
        return None


def _left() -> Callable[[], float] | None:
    """Returns the number of bytes currently available; None if no limit is known."""
    device = jax.local_devices()[0]
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats and "bytes_in_use" in stats:

        def of_device() -> float:
            now = device.memory_stats() or stats
            return now["bytes_limit"] - now["bytes_in_use"]

        return of_device
    return process_limits.left() if device.platform == "cpu" else None
