"""Visits objects by which threads and tasks wait for each other.

Other threads change them at any time, so they are compared but never restored: a program that
changes one is not kept.
"""

import asyncio
import concurrent.futures
import logging
import threading
import types
import weakref
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from calque.state.ownership import home_of_class
from calque.state.paths import Path
from calque.state.rows import StateRow
from calque.state.values import instance_dict

if TYPE_CHECKING:
    from calque.state.snapshot import Snapshot

_QUIET = ("logging", "threading", "_thread", "concurrent", "multiprocessing", "asyncio", "weakref")
"""Modules whose objects serve the process, not the program, but for a few."""
_SHOWN = ("threading", "concurrent", "asyncio")
_OF_THE_PROCESS = (
    threading.Thread,
    threading.Condition,
    concurrent.futures.Executor,
    asyncio.AbstractEventLoop,
    logging.Handler,
)
_WHO_WAITS = ("_waiters", "_getters", "_putters", "_done_callbacks")
_Lock = type(threading.Lock())
_RLock = type(threading.RLock())
LOCKING = frozenset(("acquire", "locked", "release", "_is_owned", "_recursion_count"))
"""Names by which code asks whether a lock is held, or changes that, which a `with` does not."""


def visit_waiting(snapshot: "Snapshot", value: Any, path: Path) -> bool:
    """Visits such an object; returns False if it is none."""
    if issubclass(type(value), SimpleQueue):  # what it returns depends on other threads
        snapshot.has_differing = True
        snapshot.on_difference()
        return False
    home = home_of_class(type(value)).partition(".")[0]
    if home not in _QUIET:
        return False
    if isinstance(value, logging.Logger):
        snapshot.visit_logger(value, path)
    elif isinstance(value, threading.Event):
        snapshot.hold(StateRow(value, path, threading.Event.is_set, _set_event))
    elif isinstance(value, weakref.finalize):
        snapshot.hold(StateRow(value, path, lambda finalizer: finalizer.alive))
    elif isinstance(value, _Lock | _RLock):
        snapshot.locks.append((value, path))
        if not LOCKING.isdisjoint(snapshot.namespaces.own_words):
            hold_locks(snapshot)
    elif isinstance(value, concurrent.futures.Future):
        row = snapshot.hold(StateRow(value, path, _future_state))
        snapshot.push_unnamed(row.before[None][1:], path)
    elif home in _SHOWN and not isinstance(value, _OF_THE_PROCESS):
        row = snapshot.hold(StateRow(value, path, _shown))
        for _, item in row.before[None]:
            snapshot.push_unnamed(item if isinstance(item, tuple) else (item,), path)
    return True


def hold_locks(snapshot: "Snapshot") -> None:
    """Hold whether the locks that were met are held."""
    while snapshot.locks:
        lock, path = snapshot.locks.pop()
        snapshot.hold(StateRow(lock, path, _Lock.locked if type(lock) is _Lock else _times_held))


def _times_held(lock: Any) -> int:
    """Returns how often this thread holds a reentrant lock."""
    counted = getattr(lock, "_recursion_count", lock._is_owned)  # not in every 3.11
    return int(counted())


def _future_state(future: Any) -> tuple[Any, ...]:
    return future._state, future._result, future._exception


def _shown(value: Any) -> tuple[Any, ...]:
    """Returns the attributes of an object, without those that say who waits for it."""
    held = instance_dict(value) or {}
    return tuple(
        (name, tuple(item) if isinstance(item, deque | list) else item)
        for name, item in held.items()
        if name not in _WHO_WAITS and not isinstance(item, types.MethodType)
    )


def _set_event(event: threading.Event, value: bool) -> None:
    (event.set if value else event.clear)()  # which wakes who waits for it
