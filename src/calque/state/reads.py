"""Finds the names whose values code reads, rather than only calling or incrementing them.

`self.steps += 1` can be repeated without knowing the value, and in `optimizer.step()` the name is a
method's. So a number that code uses in no other way may have any value.
"""

import dis
import sys
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

from calque.state.names import names_of, words_in

HIDDEN = frozenset(("CACHE", "PRECALL", "EXTENDED_ARG", "NOP", "RESUME", "PUSH_NULL"))
VARIABLES = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"))
ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"))
_OF_ATTRIBUTES = ATTRIBUTES | {"STORE_ATTR", "DELETE_ATTR"}
OF_CELLS = frozenset(("LOAD_CLOSURE", "MAKE_CELL"))
_PLACES = frozenset(("STORE_GLOBAL", "STORE_DEREF", "STORE_NAME"))
SUBSCRIPTS = frozenset(("BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR"))
_SIMPLE = frozenset(("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CONST"))
_COUNTING = frozenset(("+=", "-="))
_ADDING = frozenset(("+", "-"))
_CALLS = frozenset(("CALL", "CALL_KW", "CALL_FUNCTION_EX", "KW_NAMES"))
ANY_KEY = "[]"
_METHOD = 1
"""The bit in an attribute's or global's instruction that marks a call."""


class Reads(NamedTuple):
    """How a code object uses names, including keys.

    Attributes:
        values: names whose value it may use.
        keys: constant keys of items whose value it may use.
        called: names that it calls.
        used: names of containers that it uses for more than an item with a constant key.
        passed: names of objects that it uses for more than one attribute.
        added: names and constant keys whose value it only increments, and `ANY_KEY` for items with
            computed keys.
    """

    values: frozenset[str]
    keys: frozenset[str]
    called: frozenset[str]
    used: frozenset[str]
    passed: frozenset[str]
    added: frozenset[str]


@lru_cache(maxsize=16384)
def reads_of(code: CodeType) -> Reads:
    """Returns how a code object uses names (without nested functions).

    >>> def step(self, optimizer):
    ...     self.count += 1
    ...     optimizer.step(self.rate)
    >>> found = reads_of(step.__code__)
    >>> sorted(found.values), sorted(found.called)
    (['rate'], ['step'])
    >>> found = reads_of((lambda x: scale(x) + registry["a"](x)).__code__)
    >>> sorted(found.values), sorted(found.called)
    (['a', 'registry'], ['scale'])
    """
    return reads_without(code, frozenset())


def reads_without(code: CodeType, copied: frozenset[int], replaced: bool = False) -> Reads:
    """Like `reads_of`, but leaves out the values that instructions at some positions load.

    Args:
        replaced: whether `getattr` may be another function than Python's.
    """
    return _Reading(code, copied, replaced).result()


class _Reading:
    def __init__(self, code: CodeType, copied: frozenset[int], replaced: bool) -> None:
        self._copied = copied
        self._replaced = replaced
        self._code = code
        self._steps = [i for i in dis.get_instructions(code) if i.opname not in HIDDEN]
        self._tallies: set[int] = set()
        self._counted = self._counting()
        self._values: set[str] = set()
        self._keys: set[str] = set()
        self._called: set[str] = set()
        self._used: set[str] = set()
        self._passed: set[str] = set()

    def result(self) -> Reads:
        for place in range(len(self._steps)):
            self._look(place)
        loaded = {i.argval for i in self._steps if i.opname == "LOAD_CONST" and _is_text(i.argval)}
        names = names_of(self._code)
        rest = set(names.words | names.globals)
        rest -= {one.argval for one in self._steps if isinstance(one.argval, str)}
        rest -= {word for text in loaded for word in words_in(text)}
        found = [names | rest for names in (self._values, self._keys, self._used, self._passed)]
        values, keys, used, passed = map(frozenset, found)
        return Reads(values, keys, frozenset(self._called), used, passed, self._added())

    def _added(self) -> frozenset[str]:
        values = (self._steps[place].argval for place in self._counted)
        found = {value for value in values if isinstance(value, str)}
        return frozenset(found | {ANY_KEY} if self._tallies else found)

    def _look(self, place: int) -> None:
        one = self._steps[place]
        name = one.opname
        if name == "LOAD_CONST":
            self._look_at_constant(place)
        elif name in VARIABLES or name in ATTRIBUTES:
            if place in self._counted:
                return
            if is_called(self._steps, place):
                self._called.add(one.argval)
                return
            if place not in self._copied:
                self._values.add(one.argval)
            self._reach(place, one.argval)
        elif name == "BINARY_SUBSCR" and place not in self._counted:
            key = self._key(place)
            if key is not None:
                self._reach(place, key)
        elif isinstance(one.argval, str) and name not in OF_CELLS:  # any other name
            if place not in self._counted and "_FAST" not in name:
                for names in (self._values, self._used, self._passed):
                    names.add(one.argval)

    def _reach(self, place: int, name: str) -> None:
        """Record that the value of a name is loaded."""
        if place in self._tallies:
            return
        if not self._is_subscripted(place):
            self._used.add(name)
        following = [one.opname for one in self._steps[place + 1 : place + 3]]
        if following[:1] == ["COPY"]:
            following = following[1:]
        if not following or following[0] not in _OF_ATTRIBUTES:
            self._passed.add(name)

    def _look_at_constant(self, place: int) -> None:
        values = self._steps[place].argval
        if place in self._counted or place in self._copied:
            return
        for text in values if isinstance(values, tuple | frozenset) else (values,):
            if not isinstance(text, str):
                continue
            words = words_in(text)
            if text is values and self._is_key(place):
                self._values |= words | {text}
                self._keys |= words | {text}
            else:
                for names in (self._values, self._used, self._passed):
                    names |= words | {text}

    def _is_key(self, place: int) -> bool:
        """Returns True if a constant is the key of an item."""
        following = [one.opname for one in self._steps[place + 1 : place + 4]]
        if following[:1] and following[0] in SUBSCRIPTS:
            return True
        return following == ["COPY", "COPY", "BINARY_SUBSCR"]

    def _is_subscripted(self, place: int) -> bool:
        """Returns True if code takes an item with a constant key from the loaded value."""
        key = self._steps[place + 1 : place + 2]
        is_text = bool(key) and key[0].opname == "LOAD_CONST" and isinstance(key[0].argval, str)
        return is_text and self._is_key(place + 1)

    def _key(self, place: int) -> str | None:
        """Returns the constant key of a loaded item."""
        before = place - 1
        while before >= 0 and self._steps[before].opname == "COPY":
            before -= 1
        key = self._steps[before]
        return key.argval if key.opname == "LOAD_CONST" and _is_text(key.argval) else None

    # Counting -----------------------------------------------------------------------------------

    def _counting(self) -> set[int]:
        """Returns where a value is loaded, incremented and stored back, with its instructions."""
        found: set[int] = set()
        for place, one in enumerate(self._steps):
            if one.opname == "STORE_ATTR" or one.opname in _PLACES or one.opname == "STORE_SUBSCR":
                found |= self._counted_by(place) or self._added_by(place)
            if one.opname == "STORE_SUBSCR":
                found |= self._got_and_added(place)
            elif one.opname == "STORE_ATTR":
                found |= self._looked_up_and_added(place)
        return found

    def _counted_by(self, place: int) -> set[int]:
        """Returns the positions of `x += 1`, for an attribute, a variable or an item."""
        one = self._steps[place]
        swaps = {"STORE_ATTR": 1, "STORE_SUBSCR": 2}.get(one.opname, 0)
        operation = place - swaps - 1
        if operation < 0 or not _is_operation(self._steps[operation], _COUNTING):
            return set()
        if any(self._steps[i].opname != "SWAP" for i in range(operation + 1, place)):
            return set()
        where = position_of(one)
        loads = [i for i in range(operation) if where and position_of(self._steps[i]) == where]
        loads = [i for i in loads if self._steps[i].opname in _LOADS_FOR[_kind(one)]]
        if len(loads) != 1:
            return set()
        load = loads[0]
        if one.opname != "STORE_SUBSCR":
            return {load, place} if self._steps[load].argval == one.argval else set()
        if self._key(load) is not None and self._is_key(load - 3):
            return {load, load - 3, place}
        self._tally(load)
        return {load, place}

    def _tally(self, load: int) -> None:
        """Record an item that is counted by a computed key: `counts[kind] += 1`."""
        whole = position_of(self._steps[load])
        assert whole is not None
        for place in range(load - 1, -1, -1):
            part = position_of(self._steps[place])
            if part is not None and part[0::2] == whole[0::2] and part != whole:
                self._tallies.add(place)
                return

    def _added_by(self, place: int) -> set[int]:
        """Returns the positions of `x = x + 1`, if only a constant or a variable is added."""
        one = self._steps[place]
        # The number of instructions that load the target.
        behind = {"STORE_ATTR": 1, "STORE_SUBSCR": 2}.get(one.opname, 0)
        operation = place - behind - 1
        load = operation - 2
        if load - behind < 0 or not _is_operation(self._steps[operation], _ADDING):
            return set()
        loaded, added = self._steps[load], self._steps[load + 1]
        if loaded.opname not in _LOADS_FOR[_kind(one)] or added.opname not in _SIMPLE:
            return set()
        owner = self._steps[load - behind : load]
        if any(i.opname not in _SIMPLE for i in owner) or (owner and _begins_call(owner[0])):
            return set()
        again = self._steps[operation + 1 : place]
        if [(i.opname, i.argval) for i in owner] != [(i.opname, i.argval) for i in again]:
            return set()
        if one.opname != "STORE_SUBSCR":
            return {load, place} if loaded.argval == one.argval else set()
        if _is_text(owner[1].argval) and owner[1].opname == "LOAD_CONST":
            return {load, load - 1, place - 1, place}
        self._tallies |= {load - 2, place - 2}
        return {load, place}

    def _looked_up_and_added(self, place: int) -> set[int]:
        """Returns the positions of `a.x = getattr(a, "x", 0) + 1`, if `a` is a variable."""
        if place < 8 or self._replaced:
            return set()
        function, owner, name, default, call, added, add, again = self._steps[place - 8 : place]
        is_sum = _is_operation(add, _ADDING) and added.opname in _SIMPLE
        is_call = call.opname == "CALL" and call.arg == 3 and function.opname == "LOAD_GLOBAL"
        is_same = (owner.opname, owner.argval) == (again.opname, again.argval)
        of_name = name.argval == self._steps[place].argval and function.argval == "getattr"
        if not (is_sum and is_call and is_same and of_name and owner.opname in _SIMPLE):
            return set()
        return {place - 6, place} if type(default.argval) is int else set()

    def _got_and_added(self, place: int) -> set[int]:
        """Returns the positions of `d[k] = d.get(k, 0) + 1`,
        if `d` and `k` are names or attributes.
        """
        first = place
        while first and self._steps[first - 1].opname in (*_SIMPLE, "LOAD_ATTR"):
            first -= 1
        if first < 6 or not _is_operation(self._steps[first - 1], _ADDING):
            return set()
        default, call, added = self._steps[first - 4 : first - 1]
        called = call.opname == "CALL" and call.arg == 2 and added.opname in _SIMPLE
        if not called or default.opname != "LOAD_CONST" or type(default.argval) is not int:
            return set()
        stored = [(i.opname, i.argval) for i in self._steps[first:place]]
        start = first - 5 - len(stored)
        got = [(i.opname, i.argval) for i in self._steps[max(start, 0) : first - 4]]
        for length in range(1, len(stored)):
            if got[length][1] != "get" or got[:length] + got[length + 1 :] != stored:
                continue
            self._tallies |= {start + length - 1, first + length - 1}
            if length + 1 < len(stored):  # not a single name or constant
                return {place}
            return {start + length + 1, place - 1, place}
        return set()


_LOADS_FOR: dict[str, frozenset[str]] = {
    "attribute": frozenset(("LOAD_ATTR",)),
    "item": frozenset(("BINARY_SUBSCR",)),
    "variable": VARIABLES,
}


def _kind(stored: dis.Instruction) -> str:
    return {"STORE_ATTR": "attribute", "STORE_SUBSCR": "item"}.get(stored.opname, "variable")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_operation(one: dis.Instruction, symbols: frozenset[str]) -> bool:
    return one.opname == "BINARY_OP" and one.argrepr in symbols


def is_called(steps: Sequence[dis.Instruction], place: int) -> bool:
    """Returns True if what an instruction loads is called at once.

    A global variable is also marked if a part of it is called: `registry[name](x)`.
    """
    one = steps[place]
    if one.opname != "LOAD_GLOBAL" or not _begins_call(one):
        return _begins_call(one)
    start = start_of(one)
    following = (i for i in steps[place + 1 :] if start is not None and start_of(i) == start)
    return next((i.opname in _CALLS for i in following), False)


def _begins_call(one: dis.Instruction) -> bool:
    if one.opname == "LOAD_METHOD":
        return True
    by_bit = ("LOAD_ATTR",) if _ATTRIBUTES_TELL else ()
    return one.opname in ("LOAD_GLOBAL", *by_bit) and bool((one.arg or 0) & _METHOD)


_ATTRIBUTES_TELL = sys.version_info >= (3, 12)


def position_of(one: dis.Instruction) -> tuple[int, int, int, int] | None:
    """Returns an instruction's first and last line, and its first and last column."""
    at = one.positions
    if at is None or at.lineno is None or at.end_lineno is None:
        return None
    if at.col_offset is None or at.end_col_offset is None:
        return None
    return at.lineno, at.end_lineno, at.col_offset, at.end_col_offset


def start_of(one: dis.Instruction) -> tuple[int, int] | None:
    """Returns where an instruction's expression begins."""
    at = position_of(one)
    return None if at is None else (at[0], at[2])
