"""Replaces names during a trace; safe if several threads trace.

A replacement stays as long as any trace holds it, and passes on calls that do not belong to a trace
of the calling thread, so that other threads see no difference. The original is restored only if the
replacement is still in place, so that no other patch is lost.
"""

import threading
from collections.abc import Callable
from typing import Any

from calque.state.stand_ins import forget_replacement, note_replacement

_MISSING = object()


class _Patch:
    """One name in one namespace (a class, or the globals of a module)."""

    def __init__(self, place: Any, name: str, wrap: Callable[[Any], Any], builtin: Any) -> None:
        self.place = place
        self.name = name
        self.holders = 0
        self.original = self._read()
        self.found = builtin if self.original is _MISSING else self.original
        self.replacement = wrap(self.found)

    def _read(self) -> Any:
        names = self.place if isinstance(self.place, dict) else vars(self.place)
        return names.get(self.name, _MISSING)

    def install(self) -> None:
        self._write(self.replacement)
        note_replacement(self.replacement, self.found)

    def remove(self) -> None:
        forget_replacement(self.replacement)
        if self._read() is self.replacement:
            self._write(self.original)

    def _write(self, value: object) -> None:
        if isinstance(self.place, dict):
            if value is _MISSING:
                del self.place[self.name]
            else:
                self.place[self.name] = value
        elif value is _MISSING:
            delattr(self.place, self.name)
        else:
            setattr(self.place, self.name, value)


_lock = threading.RLock()
_installed: dict[tuple[int, str], _Patch] = {}


class Patches:
    """The replacements that one trace holds.

    >>> names = {"greet": lambda: "hello"}
    >>> with Patches() as patches:
    ...     patches.hold(names, "greet", lambda original: lambda: original().upper())
    ...     names["greet"]()
    'HELLO'
    >>> names["greet"]()
    'hello'
    """

    def __init__(self) -> None:
        self._held: dict[tuple[int, str], _Patch] = {}

    def hold(self, place: Any, name: str, wrap: Callable[[Any], Any], builtin: Any = None) -> None:
        """Replace `place.name` (or `place["name"]`) by `wrap` of what is there, until release.

        Args:
            builtin: what the name means where `place` does not define it.
        """
        key = (id(place), name)
        if key in self._held:
            return
        with _lock:
            patch = _installed.get(key)
            if patch is None:
                patch = _Patch(place, name, wrap, builtin)
                if getattr(patch.found, "__fx_already_patched", False):
                    return  # torch.fx has patched it, and will restore it
                _installed[key] = patch
                patch.install()
            patch.holders += 1
        self._held[key] = patch

    def release(self) -> None:
        """Release every replacement, and restore the names that no other trace holds."""
        with _lock:
            while self._held:
                key, patch = self._held.popitem()
                patch.holders -= 1
                if not patch.holders:
                    del _installed[key]
                    patch.remove()

    def __enter__(self) -> "Patches":
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()
