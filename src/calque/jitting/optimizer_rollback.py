"""Undoes the preparation of optimizers if their first call fails.

A trace creates the state that an optimizer's first step would create, before the program is
compiled and run. If the call fails by an error, an interrupt or lack of memory, the optimizers are
restored.
"""

from collections.abc import Callable
from typing import Any

import torch

from calque.device.runtime.interrupts import waits
from calque.errors.handlers import settles
from calque.program.call_serialization import tracing
from calque.state import MISSING


class _Place:
    """An item of a dict that a trace has set.

    Attributes:
        container, key: the dict and the key.
        before: the earlier value; MISSING if there was none.
        now: the value that the trace has set.
        versions: the tensors in the value, each with its version at the end of the trace.
    """

    __slots__ = ("before", "container", "key", "now", "versions")

    def __init__(self, container: Any, key: Any, before: Any) -> None:
        self.container: Any = container
        self.key: Any = key
        self.before: Any = before
        self.now: Any = container[key]
        self.versions: list[tuple[torch.Tensor, int]] = []

    def note(self) -> None:
        """Store the versions of the tensors, to detect later writes."""
        values = self.now.values() if isinstance(self.now, dict) else (self.now,)
        tensors = [one for one in values if isinstance(one, torch.Tensor)]
        self.versions = [(one, one._version) for one in tensors if not one.is_inference()]

    @property
    def is_written(self) -> bool:
        """Returns True if a tensor was written to, by a step, since `note`."""
        return any(tensor._version != version for tensor, version in self.versions)

    def take_back(self) -> None:
        """Restore the earlier value, unless the item has been assigned again."""
        if self.container.get(self.key, MISSING) is not self.now:
            return
        if self.before is MISSING:
            del self.container[self.key]
        else:
            self.container[self.key] = self.before


class Prepared:
    """A context manager around a call, which undoes the preparation by its traces if it fails.

    State to which a step has written (the program's, or one in another thread) is not undone.

    Attributes:
        users: functions to call in this case, one for each program that uses the prepared state.
    """

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self.users: list[Callable[[], object]] = []

    def __len__(self) -> int:
        return len(self._places)

    def add(self, container: object, key: object, before: object = MISSING) -> None:
        """Record that an item was set, and its earlier value."""
        self._places.append(_Place(container, key, before))

    def places(self, since: int) -> list[tuple[Any, Any]]:
        """Returns the dicts and keys of the items, except the first `since`."""
        return [(place.container, place.key) for place in self._places[since:]]

    def note(self) -> None:
        """Record the end of a trace, after which only steps write to the state."""
        for place in self._places:
            place.note()

    @settles
    def take_back(self, since: int) -> None:
        """Undo a failed trace: restore all items, except the first `since`."""
        for place in reversed(self._places[since:]):
            place.take_back()
        del self._places[since:]
        self.note()

    def __enter__(self) -> None:
        """Begin a call."""

    @waits
    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """End a call."""
        if kind is not None and self._places:
            with tracing():  # prevents reads by other threads in the meantime
                self._give_up()
        self._places.clear()
        self.users.clear()

    @settles
    def _give_up(self) -> None:
        if not any(place.is_written for place in self._places):
            for user in self.users:
                user()
            self.take_back(0)
