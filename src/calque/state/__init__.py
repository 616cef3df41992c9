"""The Python state that a function can reach: found, compared, restored and guarded."""

from calque.state.guard import StateGuard, guard_in_place, guard_of
from calque.state.rows import Row
from calque.state.running import Running, Suspension, call_watched, unwatched, watched
from calque.state.snapshot import Snapshot
from calque.state.values import ATOMIC, MISSING, SCALARS, same_value

__all__ = [
    "ATOMIC",
    "MISSING",
    "SCALARS",
    "Row",
    "Running",
    "Snapshot",
    "StateGuard",
    "Suspension",
    "call_watched",
    "guard_in_place",
    "guard_of",
    "same_value",
    "unwatched",
    "watched",
]
