"""What traces prepare for optimizers: their state, which their first step would make.

It is there before the step runs, and the program is compiled in between. A call that ends in an
error, an interrupt or for want of memory leaves optimizers as they were.
"""

from collections.abc import Callable
from typing import Any

import torch

from calque.device.runtime.interrupts import settles, waits
from calque.program.turns import tracing
from calque.state import MISSING


class _Place:
    """A place that was given something.

    Attributes:
        container, key: the place.
        before: what it held; MISSING if nothing.
        now: what it holds.
        versions: the tensors in that, with how often each had been written when the trace ended.
    """

    __slots__ = ("before", "container", "key", "now", "versions")

    def __init__(self, container: Any, key: Any, before: Any) -> None:
        self.container: Any = container
        self.key: Any = key
        self.before: Any = before
        self.now: Any = container[key]
        self.versions: list[tuple[torch.Tensor, int]] = []

    def note(self) -> None:
        """Take what it holds as not written yet."""
        values = self.now.values() if isinstance(self.now, dict) else (self.now,)
        tensors = [one for one in values if isinstance(one, torch.Tensor)]
        self.versions = [(one, one._version) for one in tensors if not one.is_inference()]

    @property
    def is_written(self) -> bool:
        """Returns True if a step has run since `note`."""
        return any(tensor._version != version for tensor, version in self.versions)

    def take_back(self) -> None:
        """Leave the place as it was, unless somebody has given it something else since."""
        if self.container.get(self.key, MISSING) is not self.now:
            return
        if self.before is MISSING:
            del self.container[self.key]
        else:
            self.container[self.key] = self.before


class Prepared:
    """What the traces of one call have prepared: a context around the call.

    Where the call ends in an error it is taken back, unless a step has written to it: the program's
    own, or that of another thread.

    Attributes:
        users: what else is done then: a function for each program that needs it.
    """

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self.users: list[Callable[[], object]] = []

    def __len__(self) -> int:
        return len(self._places)

    def add(self, container: Any, key: Any, before: Any = MISSING) -> None:
        """A place has been given something; it held `before`."""
        self._places.append(_Place(container, key, before))

    def places(self, since: int) -> list[tuple[Any, Any]]:
        """The containers and keys, but for the first so many."""
        return [(place.container, place.key) for place in self._places[since:]]

    def note(self) -> None:
        """A trace has ended: what is written from now on is written by a step."""
        for place in self._places:
            place.note()

    @settles
    def take_back(self, since: int) -> None:
        """A trace has failed: leave all as it was before, but for the first so many places."""
        for place in reversed(self._places[since:]):
            place.take_back()
        del self._places[since:]
        self.note()

    def __enter__(self) -> None:
        """Begin a call."""

    @waits
    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """End it: with an error, or well."""
        if kind is not None and self._places:
            with tracing():  # no other thread reads it in the meantime
                self._give_up()
        self._places.clear()
        self.users.clear()

    @settles
    def _give_up(self) -> None:
        if not any(place.is_written for place in self._places):
            for user in self.users:
                user()
            self.take_back(0)
