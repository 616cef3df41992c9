"""Finds the names through which code only appends to lists: `self.losses.append(loss)`.

What such a list holds does not matter to the code. So calls may append to it without knowing its
length and its items.
"""

import dis
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

from calque.state.names import names_of, words_in
from calque.state.reads import (
    ATTRIBUTES,
    HIDDEN,
    OF_CELLS,
    SUBSCRIPTS,
    VARIABLES,
    is_called,
    start_of,
)

METHODS = frozenset(("append", "extend", "appendleft", "extendleft"))
_MAKING_LISTS = frozenset(("BUILD_LIST", "LIST_EXTEND"))
SEES_LOCALS = frozenset(("eval", "exec", "locals", "vars", "dir"))
ADDING = "+="
_DEFAULTING = "setdefault"


Way = tuple[str, int]
"""A method that appends, and to what: 0 for a value itself, 1 for an item of it, and so on."""


class Growth(NamedTuple):
    """How a code object uses names, including keys, to append to containers.

    Attributes:
        others: names that it also uses in another way than to append to what they hold, or to an
            item of it.
        mixed: those of containers from which it takes more than items with constant keys.
        ways: how it appends to what the names hold.
    """

    others: frozenset[str]
    mixed: frozenset[str]
    ways: frozenset[tuple[str, Way]]


@lru_cache(maxsize=16384)
def growth_of(code: CodeType) -> Growth:
    """Returns how a code object appends to containers (without nested functions).

    >>> def step(self, x):
    ...     self.losses.append(x)
    ...     self.logs["x"].append(x)
    ...     self.rest[0].append(self.last)
    ...     self.norms["y"].append(self.norms["z"])
    >>> found = growth_of(step.__code__)
    >>> sorted(found.others), sorted(found.mixed)
    (['last', 'norms', 'z'], ['last', 'rest', 'z'])
    """
    return GrowthReading(code).result()


class GrowthReading:
    """Reads how one code object appends to containers."""

    def __init__(self, code: CodeType) -> None:
        self._code = code
        self.steps: list[dis.Instruction] = [
            i for i in dis.get_instructions(code) if i.opname not in HIDDEN
        ]
        self._beginning: dict[Any, list[int]] = {}
        for place, one in enumerate(self.steps):
            start = start_of(one)
            if start is not None and one.opname != "COPY":
                self._beginning.setdefault(start, []).append(place)
        self._others: set[str] = set()
        self._mixed: set[str] = set()
        self._ways: set[tuple[str, Way]] = set()
        self._stored: set[int] = set()
        self._locals: dict[str, set[Way]] = {}
        if SEES_LOCALS.isdisjoint(names_of(code).globals):
            self._locals = dict(self._growing_locals())

    def result(self) -> Growth:
        for place in range(len(self.steps)):
            self._look(place)
        for place, one in enumerate(self.steps):  # once all additions are known
            if isinstance(one.argval, str) and one.opname.startswith(("STORE_", "DELETE_")):
                if "_FAST" not in one.opname and place not in self._stored:
                    self._use((one.argval,))
        names = names_of(self._code)
        rest = set(names.words | names.globals)
        rest -= {one.argval for one in self.steps if isinstance(one.argval, str)}
        for one in self.steps:
            if one.opname == "LOAD_CONST" and isinstance(one.argval, str):
                rest -= words_in(one.argval)
        self._use(rest)
        return Growth(frozenset(self._others), frozenset(self._mixed), frozenset(self._ways))

    def _use(self, names: set[str] | tuple[str, ...]) -> None:
        """Record that names are used in any way."""
        self._others.update(names)
        self._mixed.update(names)

    def _look(self, place: int) -> None:
        one = self.steps[place]
        if one.opname == "LOAD_CONST":
            self._look_at_constant(place, one.argval)
        elif one.opname in VARIABLES or one.opname in ATTRIBUTES:
            if is_called(self.steps, place):
                return
            ways = self.growth(place)
            self._ways |= {(one.argval, way) for way in ways}
            if not ways:
                self._others.add(one.argval)
            if self._takes_other_items(place, ways):
                self._mixed.add(one.argval)
        elif isinstance(one.argval, str) and one.opname not in OF_CELLS:
            if "_FAST" not in one.opname and not one.opname.startswith(("STORE_", "DELETE_")):
                self._use((one.argval,))

    def _look_at_constant(self, place: int, values: object) -> None:
        for text in values if isinstance(values, tuple | frozenset) else (values,):
            if not isinstance(text, str):
                continue
            if text is values and self._is_key(place):
                ways = self._growth_of_key(place)
                self._ways |= {(text, way) for way in ways}
                if not ways:
                    self._others |= words_in(text) | {text}
                if self._takes_other_items(self._after_copies(place), ways):
                    self._mixed |= words_in(text) | {text}
            else:
                self._use(words_in(text) | {text})

    def _is_key(self, place: int) -> bool:
        """Returns True if a constant is the key of an item."""
        following = [one.opname for one in self.steps[place + 1 : place + 4]]
        return following == _AUGMENTED or any(name in SUBSCRIPTS for name in following[:1])

    def _takes_other_items(self, place: int, ways: set[Way]) -> bool:
        """Returns True if code uses a loaded value for more than an item with a constant key, or
        to append to it.
        """
        deep = not ways or any(depth for _, depth in ways)
        return deep and not self._is_item_of_constant(place)

    def _is_item_of_constant(self, place: int) -> bool:
        """Returns True if code takes an item with a constant key from the loaded value."""
        key = self.steps[place + 1 : place + 2]
        is_text = bool(key) and key[0].opname == "LOAD_CONST" and isinstance(key[0].argval, str)
        return is_text and self._is_key(place + 1)

    def _growth_of_key(self, place: int) -> set[Way]:
        item = self._after_copies(place)
        return self.growth(item) if self.steps[item].opname == "BINARY_SUBSCR" else set()

    def _after_copies(self, place: int) -> int:
        place += 1
        while self.steps[place].opname == "COPY":
            place += 1
        return place

    # Appending ----------------------------------------------------------------------------------

    def growth(self, place: int) -> set[Way]:
        """Returns how code appends to a loaded value or to an item of it, if that is all that it
        does with the value.
        """
        start, depth = start_of(self.steps[place]), 0
        found: int | None = place
        while found is not None and found + 1 < len(self.steps):
            after = self.steps[found + 1]
            if after.opname == "STORE_FAST":
                ways = self._locals.get(after.argval, set())
                return {(method, depth + inner) for method, inner in ways}
            if after.opname in ATTRIBUTES:
                if is_called(self.steps, found + 1) and after.argval in METHODS:
                    return {(after.argval, depth)}
                if not is_called(self.steps, found + 1) or after.argval != _DEFAULTING:
                    return set()
                found, expected = self._next(found + 2, start), "CALL"
            else:
                found, expected = self._next(found + 1, start), "BINARY_SUBSCR"
            if found is not None and self._is_addition(found):
                return {(ADDING, depth)}
            if found is not None and self.steps[found].opname != expected:
                return set()
            depth += 1
        return set()

    def _next(self, place: int, start: tuple[int, int] | None) -> int | None:
        """Returns the next step of the expression that begins with a loaded value."""
        places = self._beginning.get(start, [])
        index = bisect_left(places, place)
        return places[index] if index < len(places) else None

    def _is_addition(self, place: int) -> bool:
        """Returns True if a new list is added to a value in place."""
        one, before = self.steps[place], self.steps[place - 1]
        if one.opname != "BINARY_OP" or one.argrepr != ADDING:
            return False
        if one.is_jump_target or before.opname not in _MAKING_LISTS:
            return False
        store = place + 1
        while self.steps[store].opname == "SWAP":
            store += 1
        if not self.steps[store].opname.startswith("STORE_"):
            return False
        self._stored.add(store)  # which stores the same list again
        return True

    def _growing_locals(self) -> Iterator[tuple[str, set[Way]]]:
        """Yields local variables through which the code only appends, and how."""
        hidden = {*self._code.co_cellvars, *self._code.co_freevars}
        found: dict[str, list[set[Way]]] = {}
        for place, one in enumerate(self.steps):
            if "_FAST" not in one.opname or one.opname in ("STORE_FAST", "DELETE_FAST"):
                continue
            if one.opname in ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"):
                found.setdefault(one.argval, []).append(self.growth(place))
            else:  # often two variables in one instruction
                names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
                hidden.update(names)
        for name, uses in found.items():
            if all(uses) and name not in hidden:
                yield name, set().union(*uses)


_AUGMENTED = ["COPY", "COPY", "BINARY_SUBSCR"]
