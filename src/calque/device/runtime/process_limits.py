"""Limits on the memory of this process: `ulimit -v` and `ulimit -d`.

On a CPU, allocations fail only because of such limits. Without one, Linux kills a process when
memory runs out.
"""

import os
from collections.abc import Callable
from typing import Any

try:
    import resource
except ImportError:  # not on Windows
    resource: Any = None

_USED = "/proc/self/statm"
_STRICT = "/proc/sys/vm/overcommit_memory"
_COLUMNS = (("RLIMIT_AS", 0), ("RLIMIT_DATA", 5))  # column of _USED, in pages


def are_set() -> bool:
    """Returns True if an allocation may fail before the system's memory is full."""
    return bool(_limits()) or _is_strict()


def left() -> Callable[[], int] | None:
    """Returns a function that returns the number of bytes that this process may still allocate.

    Returns None if there is no limit, or if the system does not report the memory in use. Later
    changes of the limit are ignored.
    """
    limits = _limits()
    if not limits or not os.path.exists(_USED):
        return None
    page = os.sysconf("SC_PAGE_SIZE")

    def remaining() -> int:
        with open(_USED) as line:
            used = line.read().split()
        return min(limit - int(used[column]) * page for limit, column in limits)

    return remaining


def _limits() -> list[tuple[int, int]]:
    """Returns each limit in bytes, and the column of _USED that counts towards it."""
    if resource is None:
        return []
    found = [
        (resource.getrlimit(getattr(resource, name))[0], column)
        for name, column in _COLUMNS
        if hasattr(resource, name)
    ]
    return [(limit, column) for limit, column in found if limit != resource.RLIM_INFINITY]


def _is_strict() -> bool:
    """Returns True if Linux does not overcommit memory (`vm.overcommit_memory=2`)."""
    try:
        with open(_STRICT) as line:
            return line.read().strip() == "2"
    except OSError:
        return False
