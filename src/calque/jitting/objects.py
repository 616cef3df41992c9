"""Plain objects among the arguments of a function, and the classes whose objects are flattened.

The first object of a class is compared by identity, because it may be a permanent one, such as a
configuration. When a call passes a different one, objects of that class are flattened
(`structures`), unless the function also reaches them in other ways.
"""

import weakref
from collections.abc import Mapping
from typing import Any

from calque.program import signature, trees
from calque.program.function_arguments import CALLED
from calque.program.lazy_arguments import Restructure
from calque.program.structures import Flattening, Structure, TooLarge, can_open, objects_in

_ANEW = frozenset((set, *CALLED))
"""Classes of Python's library whose objects are treated like plain objects."""


class Objects:
    """The flattening of objects by one jitted function.

    Attributes:
        opened: the classes whose objects are flattened.
    """

    def __init__(self) -> None:
        self.opened: frozenset[type] = frozenset()
        self._closed: frozenset[type] = frozenset()
        self._touched: frozenset[type] = frozenset()

    def follow(self, signal: Restructure) -> None:
        """Change the flattening as requested by a signal of a trace."""
        self._closed |= signal.closed
        self._touched |= signal.touched
        self.opened = (self.opened | signal.opened) - self._closed

    def flatten(self, args: Any, kwargs: dict[str, Any], ordered: bool) -> tuple[list[Any], Any]:
        """Like `trees.flatten_call`."""
        if self.opened:
            if len(kwargs) > 1 and not ordered:
                kwargs = {name: kwargs[name] for name in sorted(kwargs)}
            flattening = Flattening(self._opens, self._is_unread)
            try:
                node = flattening.visit((tuple(args), kwargs))
            except TooLarge:
                pass
            else:
                if flattening.opened:
                    return flattening.leaves, Structure(node, frozenset(flattening.opened))
        return trees.flatten_call(args, kwargs, ordered)

    def _opens(self, kind: type, inside: bool) -> bool:
        if not inside:
            return kind in self.opened
        return kind not in self._closed and can_open(kind)

    def _is_unread(self, kind: type) -> bool:
        return kind not in self._touched

    def learn(self, old: object, new: object) -> None:
        """Compare the signatures of two calls.

        Raises:
            Restructure: the second call has different objects of the same classes.
        """
        kinds = signature.replaced(old, new)
        found = {k for k in kinds if k in _ANEW or can_open(k)} - self.opened - self._closed
        if found:
            raise Restructure(opened=found)


class Distinct:
    """Distinguishes objects among the arguments from those of the state.

    Args:
        opened: the classes whose objects are flattened.
        known: the objects of the state, by id.
    """

    def __init__(self, opened: frozenset[type], known: Mapping[int, Any]) -> None:
        self._opened = opened
        kinds = (*opened, dict, list, set)
        self._known = {key: _reference(one) for key, one in known.items() if type(one) in kinds}

    def shared(self, given: object, now: list[Any] | None = None) -> set[type]:
        """Returns the classes of the objects among a call's (args, kwargs) that also belong to the
        state.

        Args:
            now: what variables hold that may hold others in each call.
        """
        known, found = self._known, set()
        exchanged = {id(one) for one, _ in objects_in(now, self._opened)} if now else ()
        for one, kind in objects_in(given, self._opened):
            held = known.get(id(one))
            if (held is not None and held() is one) or id(one) in exchanged:
                found.add(kind)
        return found


def _reference(value: object) -> Any:
    """Returns a function that returns an object, without keeping it alive if possible."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value
