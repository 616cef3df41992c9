"""Peak and free memory: JAX's figures or, on the CPU, the system's."""

import os
import resource
from collections.abc import Mapping
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_PEAK = "peak_bytes_in_use"


class _Reset:
    """JAX's peak at the time of the last reset."""

    peak = -1


def peak(stats: Mapping[str, int], in_use: int) -> int:
    """Returns the peak of the bytes in use.

    Args:
        stats: JAX's figures for the device.
        in_use: the bytes in use now.
    """
    if _PEAK not in stats:
        return _resident_peak()
    return stats[_PEAK] if stats[_PEAK] > _Reset.peak else in_use


def reset(stats: Mapping[str, int]) -> None:
    """Reset the peak."""
    if _PEAK in stats:
        _Reset.peak = stats[_PEAK]
    elif _CLEAR.exists():
        _CLEAR.write_text("5")  # Linux: resets the peak of the resident memory


def free_and_total(stats: Mapping[str, int]) -> tuple[int, int]:
    """Returns the free and the total bytes."""
    total = stats.get("bytes_limit")
    if total is not None:
        return max(total - stats.get("bytes_in_use", 0), 0), total
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


def as_torch(stats: Mapping[str, int], in_use: int) -> dict[str, int]:
    """Returns JAX's figures, and the same figures under the names used by PyTorch's allocators."""
    found = {"current": in_use, "peak": peak(stats, in_use)}
    kinds = ("allocated_bytes", "active_bytes", "reserved_bytes")
    named = {f"{kind}.all.{which}": n for kind in kinds for which, n in found.items()}
    return {**stats, **named}


def _resident_peak() -> int:
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
