"""Replacements of Python's functions that look up attributes by name.

Code such as `getattr(callback, hook)` uses a computed name. While such a module's code is traced,
its global variables contain a `getattr` that reports its names, so that other attributes need not
be compared.
"""

import builtins
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

INTERCEPTED = ("getattr", "setattr", "hasattr", "delattr")


class _Active(threading.local):
    """Who is told of this thread's names."""

    receiver: "Interception | None" = None


_active = _Active()


class InterceptedBuiltin:
    """A builtin function that tells which names it is given."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, value: Any, name: Any, /, *rest: Any) -> Any:
        if _active.receiver is not None:
            _active.receiver.see(name)
        return self._function(value, name, *rest)


_FUNCTIONS = {name: InterceptedBuiltin(getattr(builtins, name)) for name in INTERCEPTED}
_lock = threading.Lock()
_installed_in: Counter[tuple[int, str]] = Counter()
"""In how many traces each namespace has such a function."""

Space = dict[str, Any]


class Interception:
    """The functions that one trace intercepts.

    Args:
        tell: is told of each name once; of None where something else than a string was given.

    Attributes:
        stopped: whether nothing is intercepted any more.
        was_used: whether something was.
    """

    def __init__(self, tell: Callable[[str | None], object]) -> None:
        self._tell = tell
        self._seen: set[str] = set()
        self._places: dict[tuple[int, str], Space] = {}
        self._installed = False
        self.stopped: bool = False
        self.was_used: bool = False

    def see(self, name: Any) -> None:
        """A name is looked up."""
        if type(name) is not str:
            self._tell(None)
        elif name not in self._seen:
            self._seen.add(name)
            self._tell(name)

    def intercept(self, names: Iterable[str], space: Space) -> bool:
        """Intercept in the code with these global variables; returns False if it has its own."""
        own = space.get("__builtins__")
        if own is not builtins and own is not vars(builtins):
            return False
        places = {(id(space), name): space for name in names}
        fresh = {place: space for place in places if place not in self._places}
        if any(name in space and type(space[name]) is not InterceptedBuiltin for _, name in fresh):
            return False
        self._places.update(fresh)
        self.was_used |= bool(fresh)
        if self._installed:
            _put(fresh)
        return True

    def stop(self) -> None:
        """Intercept nothing any more: some code could see it."""
        self.stopped = True
        places, self._places = self._places, {}
        if self._installed:
            _take(places)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside it, this thread's code calls the intercepted functions."""
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
                ):  # unless the program has put its own there
                    del space[place[1]]
