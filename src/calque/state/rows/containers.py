"""Rows of containers other than dicts: lists, sets, buffers, closure variables, caches."""

import array
import contextvars
import gc
from collections import deque
from types import CellType
from typing import Any

import numpy as np

from calque.state.contents import elements_of, kind_of
from calque.state.paths import Path
from calque.state.rows.row import Row
from calque.state.values import MISSING


class ListRow(Row):
    """A list or a deque.

    Attributes:
        grown: whether code only appends to it, so that what it holds is not state.
    """

    __slots__ = ("grown",)

    attribute = False

    def __init__(self, owner: Any, path: Path) -> None:
        self.grown: bool = False
        super().__init__(owner, path)

    def items(self) -> dict[Any, Any]:
        return {} if self.grown else dict(enumerate(elements_of(self.owner)))

    def put(self, key: object, value: object) -> None:
        kind_of(self.owner).__setitem__(self.owner, key, value)

    def assign(self, items: dict[Any, Any]) -> None:
        if isinstance(self.owner, deque):
            deque.clear(self.owner)
            deque.extend(self.owner, items.values())
        else:
            list.__setitem__(self.owner, slice(None), items.values())

    def append(self, values: list[Any], at_left: bool) -> None:
        """Append values, at the left or at the right."""
        if not isinstance(self.owner, deque):
            list.extend(self.owner, values)
        elif at_left:
            deque.extendleft(self.owner, values)
        else:
            deque.extend(self.owner, values)

    def leave_out(self) -> None:
        """Make what the list holds no part of the state."""
        self.grown = True
        self.guarded: bool = False
        self.before: dict[Any, Any] = {}


class SetRow(Row):
    """A set, whose elements are its keys; its iteration order cannot be restored."""

    __slots__ = ()

    read_in_order = True

    ordered = attribute = False

    def items(self) -> dict[Any, Any]:
        return {(type(item), item): item for item in elements_of(self.owner)}

    def put(self, key: Any, value: object) -> None:
        if value is MISSING:
            set.discard(self.owner, key[1])
        else:
            set.add(self.owner, value)

    def assign(self, items: dict[Any, Any]) -> None:
        set.clear(self.owner)
        set.update(self.owner, items.values())


class BytesRow(Row):
    """A buffer of plain numbers: bytearray, `array.array`, NumPy array, values of `ctypes`."""

    __slots__ = ()

    attribute = False

    def items(self) -> dict[Any, Any]:
        owner = self.owner
        if isinstance(owner, np.ndarray):
            return {None: (owner.shape, owner.dtype.str, owner.tobytes(), owner.flags.writeable)}
        return {None: bytes(owner)}

    def put(self, key: Any, value: Any) -> None:
        owner = self.owner
        if isinstance(owner, np.ndarray):
            shape, dtype, raw, writeable = value
            if owner.dtype.str != dtype:  # its own has the names of fields, too
                owner.dtype = np.dtype(dtype)
            if owner.shape != shape:
                owner.shape = shape
            if not owner.flags.writeable:  # an array over a tensor's memory takes no True
                owner.flags.writeable = True
            owner[...] = np.frombuffer(raw, owner.dtype).reshape(shape)
            if not writeable:
                owner.flags.writeable = False
        elif isinstance(owner, array.array):
            del owner[:]
            owner.frombytes(value)
        elif isinstance(owner, bytearray):
            owner[:] = value
        else:
            memoryview(owner).cast("B")[:] = value

    def name(self, key: Any) -> str:
        return str(self.path)


class CellRow(Row):
    """A variable of an enclosing function."""

    __slots__ = ()

    owner: CellType

    def items(self) -> dict[Any, Any]:
        try:
            return {None: self.owner.cell_contents}
        except ValueError:  # unbound
            return {}

    def put(self, key: object, value: object) -> None:
        if value is MISSING:
            del self.owner.cell_contents
        else:
            self.owner.cell_contents = value

    def name(self, key: Any) -> str:
        return str(self.path)


class CacheRow(Row):
    """The cache of a `functools.lru_cache` function: its number of misses, and its entries."""

    __slots__ = ()

    settable = ordered = False

    def items(self) -> dict[Any, Any]:
        return {"misses": self.owner.cache_info().misses, "entries": self._entries()}

    def _held(self) -> tuple[list[Any], int]:
        """Returns what the function refers to, and the position of the cache's dict in that."""
        found, own = gc.get_referents(self.owner), getattr(self.owner, "__dict__", None)
        return found, max(i for i, o in enumerate(found) if type(o) is dict and o is not own)

    def _entries(self) -> dict[tuple[int, int], tuple[Any, Any]]:
        """Returns every key with its result."""
        found, place = self._held()
        pairs = list(found[place].items())
        # A bounded cache stores links of a linked list.
        if self.owner.cache_parameters()["maxsize"] is not None:
            keys, rest = set(map(id, found[place])), iter(found[:place])
            pairs = [(one, next(rest)) for one in rest if id(one) in keys]
        return {(id(key), id(result)): (key, result) for key, result in pairs}

    def classes(self) -> list[type]:
        """Returns the classes that the cache holds now."""
        return [one for _, one in self._entries().values() if isinstance(one, type)]

    def difference(self, now: dict[Any, Any]) -> tuple[Any] | None:
        return None if now["misses"] == self.before["misses"] else ("misses",)

    def is_emptied(self) -> bool:
        """Returns True if an earlier entry is missing, and would be computed again."""
        return not self.before["entries"].keys() <= self._entries().keys()

    def put(self, key: object, value: object) -> None:
        pass

    def restore(self) -> None:
        if not self.is_changed():
            return
        before, now = self.before["entries"], self._entries()  # these may be of the trace
        if before and not self.is_emptied():
            found, place = self._held()
            for key in now.keys() - before.keys():
                del found[place][now[key][0]]  # a bounded cache drops the link in its turn
            self.rebase()
        else:
            self.owner.cache_clear()
            if not before:
                self.rebase()

    def name(self, key: Any) -> str:
        return str(self.path)


class ContextRow(Row):
    """A `contextvars.ContextVar` in the context of this thread."""

    __slots__ = ()

    owner: contextvars.ContextVar[Any]

    def items(self) -> dict[Any, Any]:
        value = self.owner.get(MISSING)
        return {} if value is MISSING else {None: value}

    def put(self, key: object, value: object) -> None:
        if value is MISSING:  # unset, or set to its default
            try:
                value = contextvars.Context().run(self.owner.get)
            except LookupError:
                return
        self.owner.set(value)

    def name(self, key: Any) -> str:
        return str(self.path)
