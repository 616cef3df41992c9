"""The Python state that a function reaches: found, compared, restored and guarded."""

from calque.state.guard import StateGuard
from calque.state.rows import Row
from calque.state.running import Running, Suspension, call_watched, unwatched, watched
from calque.state.snapshot import Snapshot
from calque.state.values import ATOMIC, MISSING, SCALARS, same_value
from calque.state.weak import weakened

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
    "same_value",
    "unwatched",
    "watched",
    "weakened",
]
