"""The Python state that a function can reach: found, compared, restored and guarded."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from calque.upstream.later_names import later

if TYPE_CHECKING:
    from calque.state.guard import StateGuard, guard_in_place, guard_of
    from calque.state.rows import Row
    from calque.state.running import Running, Suspension
    from calque.state.snapshot import STANDING_IN, Snapshot
    from calque.state.values import ATOMIC, MISSING, SCALARS, same_value
    from calque.state.watched_calls import call_watched, unwatched, watched

__all__ = [
    "ATOMIC",
    "MISSING",
    "SCALARS",
    "STANDING_IN",
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

__getattr__: Callable[[str], Any] = later(
    __name__,
    {
        **dict.fromkeys(("StateGuard", "guard_in_place", "guard_of"), ".guard"),
        **dict.fromkeys(("Running", "Suspension"), ".running"),
        "Row": ".rows",
        **dict.fromkeys(("STANDING_IN", "Snapshot"), ".snapshot"),
        **dict.fromkeys(("ATOMIC", "MISSING", "SCALARS", "same_value"), ".values"),
        **dict.fromkeys(("call_watched", "unwatched", "watched"), ".watched_calls"),
    },
)
