"""Functions that temporarily replace others.

While an optimizer steps in a trace, `math.sqrt` also accepts traced numbers. This is not a change
by the program, so rows contain the original.
"""

import builtins
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

Space = dict[str, Any]

_lock = threading.Lock()
_held: Counter[tuple[int, str]] = Counter()
"""The number of contexts that have put a function in each place."""

_added: set[tuple[int, str]] = set()
"""The places that held nothing, so that code found a builtin function."""


class _Present:
    """The number of contexts with replaced functions."""

    count = 0


present: _Present = _Present()


class StandInValue:
    """The base class of values that stand for arguments; they are no state."""

    __slots__ = ()


class StandIn:
    """A function that replaces another.

    Args:
        original: the original function.
        takes: returns True for arguments for which `function` is called.
        function: the replacement.
    """

    __slots__ = ("_function", "_takes", "original")

    def __init__(
        self,
        original: Callable[..., Any],
        takes: Callable[[tuple[Any, ...]], bool],
        function: Callable[..., Any],
    ) -> None:
        self.original: Callable[..., Any] = original
        self._takes = takes
        self._function = function

    def __getattr__(self, name: str) -> Any:  # the name of a function, its signature
        if name == "original":  # of an object that is not initialized
            raise AttributeError(name)
        return getattr(self.original, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._takes(args):
            return self._function(*args, **kwargs)
        return self.original(*args, **kwargs)


class AddedBuiltin(StandIn):
    """A function in a module's namespace that replaces a builtin, which the namespace does not
    hold.
    """

    __slots__ = ()

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, self.original)  # pyright: ignore[reportArgumentType]


_originals: dict[int, list[tuple[Any, Any]]] = {}
"""For each function of a trace that is in place, by its id: itself, and what it replaces."""


def note_replacement(replacement: Any, replaced: Any) -> None:
    """Have rows contain what a function of a trace replaces, as long as it is in place."""
    with _lock:
        _originals.setdefault(id(replacement), []).append((replacement, replaced))
        present.count += 1


def forget_replacement(replacement: Any) -> None:
    """Is called before the original is put back, once for each call of `note_replacement`."""
    with _lock:
        noted = _originals[id(replacement)]
        noted.pop()
        if not noted:
            del _originals[id(replacement)]
        present.count -= 1


def original(value: Any) -> Any:
    """Returns the original of a replaced function; other values unchanged."""
    if type(value) is StandIn:
        return value.original
    found = _originals.get(id(value)) if _originals else None
    return found[-1][1] if found else value


@contextmanager
def standing_in(places: Collection[tuple[Space, str, StandIn]]) -> Iterator[None]:
    """A context manager in which functions replace their originals in namespaces."""
    put: list[tuple[Space, str, StandIn]] = []
    with _lock:
        present.count += 1
        for space, name, function in places:
            if space.get(name, vars(builtins).get(name)) is function.original:
                if name not in space:
                    _added.add((id(space), name))
                space[name] = function
            if space.get(name) is function:  # may have been set by another thread
                _held[id(space), name] += 1
                put.append((space, name, function))
    try:
        yield
    finally:
        with _lock:
            present.count -= 1
            for space, name, function in put:
                _held[id(space), name] -= 1
                if _held[id(space), name] == 0:
                    del _held[id(space), name]
                    is_builtin = (id(space), name) in _added
                    _added.discard((id(space), name))
                    if space.get(name) is not function:
                        continue
                    if is_builtin:
                        del space[name]
                    else:
                        space[name] = function.original
