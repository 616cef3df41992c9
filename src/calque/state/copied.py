"""Finds the numbers that code only copies into what it appends: `log.append((self.step, loss))`.

A count that code increments, and otherwise only copies, may have any value: each call appends the
count that it then finds.
"""

import dis
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

from calque.state.growth import ADDING, METHODS, SEES_LOCALS, GrowthReading, growth_of
from calque.state.names import names_of
from calque.state.reads import (
    ATTRIBUTES,
    VARIABLES,
    Reads,
    is_called,
    position_of,
    reads_without,
    start_of,
)

_LOCALS = frozenset(("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"))
_CONSTANTS = frozenset(("LOAD_CONST", "LOAD_SMALL_INT"))
_BEGINNING = _LOCALS | _CONSTANTS | VARIABLES | {"LOAD_CLOSURE", "LOAD_FAST_LOAD_FAST"}
"""Instructions that only push a value."""
_BUILDING = frozenset(("BUILD_TUPLE", "BUILD_LIST", "BUILD_MAP", "BUILD_CONST_KEY_MAP"))
_MERGING = frozenset(("DICT_UPDATE", "LIST_EXTEND"))
_COMPLETING = _MERGING | {"LIST_TO_TUPLE"}
_STORES = ("STORE_FAST", "STORE_FAST_LOAD_FAST")
_OFFSETS = frozenset(("+", "-"))

Receiver = tuple[str, int]
"""A name, and what code appends to: 0 for its value, 1 for an item of that, and so on."""
Position = tuple[int, int, int, int]


class Copies(NamedTuple):
    """The names of numbers that a code object copies into what it appends.

    Attributes:
        names: the names, including keys, with what the numbers are appended to.
        reads: how the code uses names apart from that.
    """

    names: dict[str, frozenset[Receiver]]
    reads: Reads


@lru_cache(maxsize=16384)
def copies_of(code: CodeType, replaced: bool = False) -> Copies:
    """Returns what a code object only copies (without nested functions).

    Args:
        replaced: as in `reads_without`.

    >>> def step(self, loss):
    ...     self.log.append({"step": self.step + 1, "loss": loss, "rate": float(self.rate)})
    >>> found = copies_of(step.__code__)
    >>> found.names, "step" in found.reads.values, "rate" in found.reads.values
    ({'step': frozenset({('log', 0)})}, False, True)
    """
    if not growth_of(code).ways:
        return Copies({}, reads_without(code, frozenset(), replaced))
    return _Copying(code, replaced).result()


class _Copying:
    def __init__(self, code: CodeType, replaced: bool) -> None:
        self._code = code
        self._replaced = replaced
        self._growth = GrowthReading(code)
        self._steps = self._growth.steps
        self._at = [position_of(one) for one in self._steps]
        self._sees_locals = not SEES_LOCALS.isdisjoint(names_of(code).globals)
        self._following: set[str] = set()

    def result(self) -> Copies:
        names: dict[str, frozenset[Receiver]] = {}
        copied: set[int] = set()
        for place, one in enumerate(self._steps):
            name = self._loaded(place, one)
            into = None if name is None else self._into(place)
            if name is not None and into:
                names[name] = names.get(name, frozenset()) | into
                copied.add(place - 1 if one.opname == "BINARY_SUBSCR" else place)
        if copied:
            copied.update(self._keys())
        return Copies(names, reads_without(self._code, frozenset(copied), self._replaced))

    def _keys(self) -> Iterator[int]:
        """Yields the constant keys of dicts that are appended, which are names of no state."""
        for place, one in enumerate(self._steps):
            if one.opname == "LOAD_CONST" and not isinstance(one.argval, int | float):
                several = self._steps[place + 1].opname == "BUILD_CONST_KEY_MAP"
                taker = place + 1 if several else self._taker(place)
                if taker is not None and (several or self._is_key(place, taker)):
                    if self._into(self._completed(taker)):
                        yield place

    def _loaded(self, place: int, one: dis.Instruction) -> str | None:
        """Returns the name or constant key of a loaded value."""
        if one.opname in VARIABLES or one.opname in ATTRIBUTES:
            return None if is_called(self._steps, place) else one.argval
        if one.opname != "BINARY_SUBSCR" or not place:
            return None
        key = self._steps[place - 1]
        return key.argval if key.opname == "LOAD_CONST" and type(key.argval) is str else None

    def _into(self, place: int) -> frozenset[Receiver] | None:
        """Returns what a value, with which an instruction ends, is appended to; None if code may do
        anything else with it.
        """
        place = self._after_offset(place)
        while True:
            taker = self._taker(place)
            if taker is None:
                return None
            one = self._steps[taker]
            if one.opname in _STORES:
                stored = one.argval
                return self._into_from(stored if isinstance(stored, str) else stored[0])
            if one.opname == "CALL" and one.arg == 1 and taker == place + 1:
                return self._receiver(taker, METHODS)
            if one.opname == "BINARY_OP" and one.argrepr == ADDING and taker == place + 1:
                return self._receiver(taker, {ADDING})
            if one.opname not in _BUILDING and one.opname not in _MERGING:
                return None
            if one.opname == "BUILD_MAP" and self._order(place, taker) % 2 == 0:  # a key
                return None
            place = self._completed(taker)

    def _completed(self, place: int) -> int:
        """Returns the last instruction of a display such as `{"a": x, **others}`, which consists of
        several parts.
        """
        whole = self._at[place]
        for later in range(place + 1, len(self._steps)):
            if self._at[later] == whole and self._steps[later].opname in _COMPLETING:
                place = later
            elif not _holds(whole, self._at[later]):
                break
        return place

    def _after_offset(self, place: int) -> int:
        """Returns the last instruction of `x + 1`, if `x` ends at a place."""
        following = self._steps[place + 1 : place + 3]
        if len(following) < 2 or following[1].opname != "BINARY_OP":
            return place
        number, operation = following
        whole = number.opname in _CONSTANTS and type(number.argval) is int
        return place + 2 if whole and operation.argrepr in _OFFSETS else place

    def _taker(self, place: int) -> int | None:
        """Returns the instruction that takes a value from the stack, if it is certain."""
        at = self._at[place]
        if at is None or place + 1 >= len(self._steps):
            return None
        following = self._steps[place + 1]
        if following.opname in _STORES:
            return place + 1
        if following.opname not in _BEGINNING and not _is_empty(following):
            return place + 1 if _holds(self._at[place + 1], at) else None
        for taker in range(place + 1, len(self._steps)):
            if self._at[taker] is None:
                return None
            # The keys of a dict are a constant with the position of the dict.
            if _holds(self._at[taker], at) and self._steps[taker].opname != "LOAD_CONST":
                return None if _is_empty(self._steps[taker]) else taker
        return None

    def _is_key(self, place: int, taker: int) -> bool:
        """Returns True if an instruction ends a key of a new dict."""
        if self._steps[taker].opname != "BUILD_MAP":
            return False
        order = self._order(place, taker)
        return order >= 0 and order % 2 == 0

    def _order(self, place: int, building: int) -> int:
        """Returns how many keys and values of a new dict precede the one with which an instruction
        ends; -2 if that is uncertain.
        """
        whole, own = self._at[building], self._at[place]
        inside = [at for at in self._at[:building] if _holds(whole, at)]
        parts = [at for at in set(inside) if not any(_holds(one, at) for one in inside)]
        parts = sorted(at for at in parts if at is not None)[
            -2 * (self._steps[building].arg or 0) :
        ]
        return parts.index(own) if own in parts else -2

    def _receiver(
        self, taker: int, methods: frozenset[str] | set[str]
    ) -> frozenset[Receiver] | None:
        """Returns to what an instruction appends, as names of state."""
        start = start_of(self._steps[taker])
        chain = [i for i in range(taker) if start is not None and start_of(self._steps[i]) == start]
        if methods is METHODS:
            called = [i for i in chain if is_called(self._steps, i)]
            called = [i for i in called if self._steps[i].opname in ATTRIBUTES]
            if not called or self._steps[called[-1]].argval not in METHODS:
                return None
            methods, chain = {self._steps[called[-1]].argval}, [i for i in chain if i < called[-1]]
        for place in reversed(chain):
            one = self._steps[place]
            if one.opname == "CALL":  # also `setdefault`, whose default may be any object
                return None
            if one.opname in _LOCALS:
                return self._receiver_in(one.argval)
            name = self._loaded(place, one)
            if name is not None:
                ways = self._growth.growth(place)
                return frozenset((name, depth) for way, depth in ways if way in methods) or None
        return None

    def _receiver_in(self, name: str) -> frozenset[Receiver] | None:
        """Returns the state that a local variable holds, if code assigns it once."""
        stores = [place for place, one in self._mentions(name) if self._stores(one, name)]
        if self._is_open(name) or len(stores) != 1 or not stores[0]:
            return None
        place = stores[0] - 1
        one = self._steps[place]
        if one.opname not in VARIABLES and one.opname not in ATTRIBUTES:
            return None
        found = frozenset((one.argval, depth) for _, depth in self._growth.growth(place))
        return found or None

    # Local variables ------------------------------------------------------------------------------

    def _into_from(self, name: str) -> frozenset[Receiver] | None:
        """Like `_into`, for all uses of a local variable."""
        if name in self._following:
            return frozenset()
        if self._is_open(name):
            return None
        self._following.add(name)
        try:
            found: set[Receiver] = set()
            for place, one in self._mentions(name):
                if one.opname == "DELETE_FAST" or self._stores(one, name):
                    continue
                into = self._into(place) if one.opname in _LOCALS else None
                if into is None:
                    return None
                found |= into
            return frozenset(found)
        finally:
            self._following.discard(name)

    def _is_open(self, name: str) -> bool:
        """Returns True if a local variable is a parameter, or may be read in other ways."""
        code = self._code
        given = code.co_argcount + code.co_kwonlyargcount
        given += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
        hidden = (*code.co_varnames[:given], *code.co_cellvars, *code.co_freevars)
        return self._sees_locals or name in hidden

    def _stores(self, one: dis.Instruction, name: str) -> bool:
        """Returns True if an instruction stores a local variable, and does nothing else with it."""
        return one.opname in _STORES and one.argval in (name, (name, *one.argval[1:]))

    def _mentions(self, name: str) -> Iterator[tuple[int, dis.Instruction]]:
        """Yields the instructions that use a local variable."""
        for place, one in enumerate(self._steps):
            names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
            if "_FAST" in one.opname and name in names:
                yield place, one


def _is_empty(one: dis.Instruction) -> bool:
    return one.opname in ("BUILD_MAP", "BUILD_LIST", "BUILD_TUPLE") and one.arg == 0


def _holds(outer: Position | None, inner: Position | None) -> bool:
    """Returns True if a position contains another one, and is not the same."""
    if outer is None or inner is None or outer == inner:
        return False
    before, end = (outer[0], outer[2]), (outer[1], outer[3])
    return before <= (inner[0], inner[2]) and (inner[1], inner[3]) <= end
