"""Replaces Python functions that look up attributes by name.

Code such as `getattr(callback, hook)` uses a computed name. While such a module's code is traced,
its global variables contain a `getattr` that reports the names, so that other attributes need not
be compared. Likewise, an `id` reports which objects code has asked for.
"""

import builtins
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from calque.state.stand_ins import AddedBuiltin

INTERCEPTED = ("getattr", "setattr", "hasattr", "delattr", "id")


class _Active(threading.local):
    """The receiver of this thread's names."""

    receiver: "Interception | None" = None


_active = _Active()


class InterceptedBuiltin:
    """A builtin function that reports the names or the object it is called with."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, value: Any, /, *rest: Any) -> Any:
        receiver = _active.receiver
        if receiver is not None and rest:
            receiver.see(rest[0])
        elif receiver is not None:
            receiver.identified.add(id(value))
        return self._function(value, *rest)


ADDED = (InterceptedBuiltin, AddedBuiltin)
"""What a trace puts into namespaces in the place of builtins, which they do not hold."""
_FUNCTIONS = {name: InterceptedBuiltin(getattr(builtins, name)) for name in INTERCEPTED}
_lock = threading.Lock()
_installed_in: Counter[tuple[int, str]] = Counter()
"""The number of traces in which each namespace has such a function."""

Space = dict[str, Any]


class Interception:
    """The functions that one trace intercepts.

    Args:
        on_name: called once for each name, with None for a value that is not a string.

    Attributes:
        stopped: whether interception has been stopped.
        was_used: whether functions that look up names were intercepted.
        identified: the results of `id` in intercepted code.
    """

    def __init__(self, on_name: Callable[[str | None], object]) -> None:
        self._on_name = on_name
        self._seen: set[str] = set()
        self._places: dict[tuple[int, str], Space] = {}
        self._installed = False
        self.stopped: bool = False
        self.was_used: bool = False
        self.identified: set[int] = set()

    def see(self, name: object) -> None:
        """Handle the lookup of a name."""
        if type(name) is not str:
            self._on_name(None)
        elif name not in self._seen:
            self._seen.add(name)
            self._on_name(name)

    def intercept(self, names: Iterable[str], space: Space) -> bool:
        """Intercept in code with these global variables; returns False if they define their own
        functions.
        """
        own = space.get("__builtins__")
        if own is not builtins and own is not vars(builtins):
            return False
        places = {(id(space), name): space for name in names}
        fresh = {place: space for place in places if place not in self._places}
        if any(name in space and type(space[name]) is not InterceptedBuiltin for _, name in fresh):
            return False
        self._places.update(fresh)
        self.was_used |= any(name != "id" for _, name in fresh)
        if self._installed:
            _put(fresh)
        return True

    def stop(self) -> None:
        """Stop intercepting, because some code could observe it."""
        self.stopped = True
        places, self._places = self._places, {}
        if self._installed:
            _take(places)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """A context manager in which this thread's code calls the intercepted functions."""
        outer, _active.receiver = _active.receiver, self
        try:
            _put(self._places)
            self._installed = True
            yield
        finally:
            self._installed = False
            _take(self._places)
            _active.receiver = outer


def _put(places: dict[tuple[int, str], Space]) -> None:
    with _lock:
        for place, space in places.items():
            _installed_in[place] += 1
            space.setdefault(place[1], _FUNCTIONS[place[1]])


def _take(places: dict[tuple[int, str], Space]) -> None:
    with _lock:
        for place, space in places.items():
            _installed_in[place] -= 1
            if _installed_in[place] <= 0:
                del _installed_in[place]
                if (
                    type(space.get(place[1])) is InterceptedBuiltin
                ):  # unless the program has replaced them
                    del space[place[1]]
