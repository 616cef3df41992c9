"""Rows: one container each, and what it held when it was found.

Whatever a program keeps in Python stands in some container: a dict, a list, a closure variable, the
attributes of an object. A row reads one of them, tells what has changed, and puts it back.
"""

import array
import contextvars
import functools
import gc
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from types import CellType, FunctionType, MemberDescriptorType
from typing import Any

import numpy as np

from calque.state.paths import Path
from calque.state.values import MISSING, same_keys, same_objects, same_value

_HEAP_TYPE = 1 << 9


class Row:
    """A container (see the module).

    Attributes:
        owner: the container.
        path: how the user's program names it.
        before: what it held, by key, when it was found.
        settable: whether its content can be put back.
        ordered: whether the order of its keys is part of its content.
        restored: whether it is the program's, so that what a trace changes in it is put back.
        guarded: whether calls of a program compare it.
    """

    __slots__ = ("before", "guarded", "ignored", "owner", "path", "restored")

    settable = True
    ordered = True
    attribute = True
    """Whether keys are names of attributes, in messages."""

    def __init__(self, owner: Any, path: Path) -> None:
        self.owner = owner
        self.path = path
        self.guarded = True
        self.restored = not path.foreign
        self.ignored: Collection[Any] = ()
        self.before = self.items()

    def items(self) -> dict[Any, Any]:
        """What the container holds now, by key."""
        raise NotImplementedError

    def put(self, key: Any, value: Any) -> None:
        """Make a key hold a value, or nothing (`MISSING`)."""
        raise NotImplementedError

    def assign(self, items: dict[Any, Any]) -> None:
        """Make the container hold these, in this order."""
        now = self.items()
        for key in now:
            if key not in items:
                self.put(key, MISSING)
        for key, value in items.items():
            self.put(key, value)

    def get(self, key: Any) -> Any:
        """What a key holds; `MISSING` if nothing."""
        return self.items().get(key, MISSING)

    def name(self, key: Any) -> str:
        """How the user's program names what a key holds."""
        return str(self.path.attribute(key) if self.attribute else self.path.item(key))

    def rebase(self) -> None:
        """Take what it holds now for what it held."""
        self.before = self.items()

    def is_changed(self, now: dict[Any, Any] | None = None) -> bool:
        """Whether it holds something else than it did."""
        now = self.items() if now is None else now
        if same_objects(now, self.before):
            return False
        if self.ordered and not same_keys(now, self.before):
            return True
        return self.difference(now) is not None

    def difference(self, now: dict[Any, Any]) -> tuple[Any] | None:
        """The first key that holds something else than it did, in a tuple."""
        before = self.before
        for key in now:
            if key not in before and key not in self.ignored:
                return (key,)
        for key, value in before.items():
            current = now.get(key, MISSING)
            if current is not value and key not in self.ignored:
                if not same_value(current, value):
                    return (key,)
        return None

    def restore(self) -> None:
        """Put back what was held when the row was made."""
        now = self.items()
        if self.is_changed(now):
            kept = {key: now[key] for key in self.ignored if key in now}
            self.assign({**self.before, **kept})


class DictRow(Row):
    """A dict, or the instance dict of an object."""

    __slots__ = ("attribute",)

    def __init__(self, owner: dict[Any, Any], path: Path, attribute: bool = False) -> None:
        self.attribute = attribute  # pyright: ignore[reportIncompatibleVariableOverride]
        super().__init__(owner, path)

    @property
    def _kind(self) -> Any:
        return OrderedDict if isinstance(self.owner, OrderedDict) else dict

    def items(self) -> dict[Any, Any]:
        if isinstance(self.owner, OrderedDict):
            return dict(OrderedDict.items(self.owner))
        return dict(dict.items(self.owner))

    def get(self, key: Any) -> Any:
        return dict.get(self.owner, key, MISSING)

    def put(self, key: Any, value: Any) -> None:
        if value is not MISSING:
            self._kind.__setitem__(self.owner, key, value)
        elif dict.__contains__(self.owner, key):
            self._kind.__delitem__(self.owner, key)

    def assign(self, items: dict[Any, Any]) -> None:
        if list(items) != list(self.items()):
            self._kind.clear(self.owner)
        for key, value in items.items():
            self.put(key, value)


class InstanceRow(DictRow):
    """The attributes of an object, a tensor perhaps, that each call brings."""

    __slots__ = ()

    def __init__(self, owner: Any, path: Path, attribute: bool = True) -> None:
        super().__init__(vars(owner), path, attribute)


class HooksRow(DictRow):
    """A dict of hooks that holds for the process: calque's own, of any thread, are not seen."""

    __slots__ = ()

    def items(self) -> dict[Any, Any]:
        return {key: hook for key, hook in super().items().items() if not is_own_hook(hook)}

    def assign(self, items: dict[Any, Any]) -> None:
        own = {key: hook for key, hook in super().items().items() if is_own_hook(hook)}
        super().assign({**items, **own})


def is_own_hook(hook: Any) -> bool:
    """Whether a hook was registered by calque itself, for as long as a function is traced."""
    return (getattr(hook, "__module__", None) or "").partition(".")[0] == "calque"


class NamedRow(Row):
    """Some names of a namespace: of a module, of an object, of the globals of a function."""

    __slots__ = ("names",)

    ordered = False

    def __init__(self, owner: dict[str, Any], path: Path, names: Collection[str]) -> None:
        self.names = names
        super().__init__(owner, path)

    def items(self) -> dict[Any, Any]:
        owner, names = self.owner, self.names
        if len(names) < len(owner):
            return {name: owner[name] for name in names if name in owner}
        return {name: value for name, value in owner.items() if name in names}

    def get(self, key: Any) -> Any:
        return self.owner.get(key, MISSING)

    def put(self, key: Any, value: Any) -> None:
        if value is MISSING:
            self.owner.pop(key, None)
        else:
            self.owner[key] = value


class ClassRow(NamedRow):
    """Some attributes of a class itself, and all functions that Python itself may look for."""

    __slots__ = ("kind",)

    def __init__(self, kind: type, path: Path, names: Collection[str]) -> None:
        self.kind = kind
        super().__init__(vars(kind), path, names)  # pyright: ignore[reportArgumentType]

    def items(self) -> dict[Any, Any]:
        names = self.names
        return {n: v for n, v in self.owner.items() if n in names or _is_special(n, v)}

    def put(self, key: Any, value: Any) -> None:
        if value is not MISSING:
            type.__setattr__(self.kind, key, value)
        elif key in self.owner:
            type.__delattr__(self.kind, key)


def _is_special(name: str, value: Any) -> bool:
    return name.startswith("__") and name.endswith("__") and callable(value)


class ListRow(Row):
    """A list, or a deque."""

    __slots__ = ()

    attribute = False

    def items(self) -> dict[Any, Any]:
        return dict(enumerate(self.owner))

    def put(self, key: Any, value: Any) -> None:
        self.owner[key] = value

    def assign(self, items: dict[Any, Any]) -> None:
        if isinstance(self.owner, deque):
            self.owner.clear()
            self.owner.extend(items.values())
        else:
            list.__setitem__(self.owner, slice(None), items.values())


class SetRow(Row):
    """A set; its elements are its keys."""

    __slots__ = ()

    ordered = attribute = False

    def items(self) -> dict[Any, Any]:
        return {(type(item), item): item for item in self.owner}

    def put(self, key: Any, value: Any) -> None:
        if value is MISSING:
            self.owner.discard(key[1])
        else:
            self.owner.add(value)

    def assign(self, items: dict[Any, Any]) -> None:
        self.owner.clear()
        self.owner.update(items.values())


class BytesRow(Row):
    """A buffer of plain numbers: bytearray, `array.array`, an array of numpy's."""

    __slots__ = ()

    attribute = False

    def items(self) -> dict[Any, Any]:
        owner = self.owner
        if isinstance(owner, np.ndarray):
            return {None: (owner.shape, owner.dtype.str, owner.tobytes())}
        return {None: bytes(owner)}

    def put(self, key: Any, value: Any) -> None:
        owner = self.owner
        if isinstance(owner, np.ndarray):
            shape, dtype, raw = value
            if owner.shape != shape:
                owner.shape = shape
            owner[...] = np.frombuffer(raw, dtype).reshape(shape)
        elif isinstance(owner, array.array):
            del owner[:]
            owner.frombytes(value)
        else:
            owner[:] = value

    def name(self, key: Any) -> str:
        return str(self.path)


class CellRow(Row):
    """A variable of an enclosing function."""

    __slots__ = ()

    owner: CellType

    def items(self) -> dict[Any, Any]:
        try:
            return {None: self.owner.cell_contents}
        except ValueError:  # it has no value yet, or none any more
            return {}

    def put(self, key: Any, value: Any) -> None:
        if value is MISSING:
            del self.owner.cell_contents
        else:
            self.owner.cell_contents = value

    def name(self, key: Any) -> str:
        return str(self.path)


class AttributeRow(Row):
    """Attributes that are in no dict: slots, the class of an object, the code of a function.

    Args:
        reads: what reads each; raises AttributeError if there is no value.
        write: what writes one; None if none can be written.
    """

    __slots__ = ("reads", "write")

    ordered = False

    def __init__(
        self,
        owner: Any,
        path: Path,
        reads: dict[str, Callable[[Any], Any]],
        write: Callable[[Any, str, Any], None] | None,
    ) -> None:
        self.reads = reads
        self.write = write
        super().__init__(owner, path)

    @property
    def settable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.write is not None

    def items(self) -> dict[Any, Any]:
        found = {}
        for name, read in self.reads.items():
            try:
                found[name] = read(self.owner)
            except AttributeError:
                continue
        return found

    def put(self, key: Any, value: Any) -> None:
        if self.write is not None:
            self.write(self.owner, key, value)


class SlotsRow(AttributeRow):
    """The slots of an object that each call brings."""

    __slots__ = ()

    def __init__(self, owner: Any, path: Path) -> None:
        super().__init__(owner, path, slots_of(type(owner)), set_attribute)


@functools.lru_cache(maxsize=4096)
def slots_of(kind: type) -> dict[str, Callable[[Any], Any]]:
    """What reads each slot of the objects of a class."""
    found: dict[str, Callable[[Any], Any]] = {}
    for base in kind.__mro__:
        for name, value in vars(base).items():
            if isinstance(value, MemberDescriptorType) and is_made_in_python(base):
                found.setdefault(name, lambda o, get=value.__get__: get(o))
    return found


def is_made_in_python(kind: type) -> bool:
    """Whether a class was made by a class statement: its objects hold slots and no more."""
    return bool(kind.__flags__ & _HEAP_TYPE) and "__module__" in vars(kind)


def set_attribute(owner: Any, name: str, value: Any) -> None:
    """`object.__setattr__`, or `__delattr__` for MISSING."""
    if value is MISSING:
        object.__delattr__(owner, name)
    else:
        object.__setattr__(owner, name, value)


def function_row(function: FunctionType, path: Path) -> AttributeRow:
    """The code and the defaults of a function."""
    names = ("__code__", "__defaults__", "__kwdefaults__")
    reads = {name: lambda f, name=name: object.__getattribute__(f, name) for name in names}
    return AttributeRow(function, path, reads, set_attribute)


class CacheRow(Row):
    """A cache of `functools.lru_cache`: how often it had to call its function, and its entries."""

    __slots__ = ()

    settable = ordered = False

    def items(self) -> dict[Any, Any]:
        return {"misses": self.owner.cache_info().misses, "entries": self._entries()}

    def _entries(self) -> dict[int, Any]:
        held = getattr(self.owner, "__dict__", None)
        dicts = [d for d in gc.get_referents(self.owner) if type(d) is dict and d is not held]
        return {id(entry): entry for found in dicts for entry in found.values()}

    def difference(self, now: dict[Any, Any]) -> tuple[Any] | None:
        return None if now["misses"] == self.before["misses"] else ("misses",)

    def is_emptied(self) -> bool:
        """Whether an entry has gone that was there: it would be computed again."""
        return not self.before["entries"].keys() <= self._entries().keys()

    def put(self, key: Any, value: Any) -> None:
        pass

    def restore(self) -> None:
        if self.is_changed():
            self.owner.cache_clear()  # it may hold values of the trace

    def name(self, key: Any) -> str:
        return str(self.path)


class ContextRow(Row):
    """A `contextvars.ContextVar` in the context of this thread."""

    __slots__ = ()

    owner: contextvars.ContextVar[Any]

    def items(self) -> dict[Any, Any]:
        value = self.owner.get(MISSING)
        return {} if value is MISSING else {None: value}

    def put(self, key: Any, value: Any) -> None:
        if value is MISSING:  # only its default says as much
            try:
                value = contextvars.Context().run(self.owner.get)
            except LookupError:
                return
        self.owner.set(value)

    def name(self, key: Any) -> str:
        return str(self.path)


class StateRow(Row):
    """An object that tells its state and takes it back by functions of its own."""

    __slots__ = ("read", "write")

    ordered = False

    def __init__(
        self,
        owner: Any,
        path: Path,
        read: Callable[[Any], Any],
        write: Callable[[Any, Any], None] | None = None,
    ) -> None:
        self.read = read
        self.write = write
        super().__init__(owner, path)
        self.restored = True

    @property
    def settable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return False

    def items(self) -> dict[Any, Any]:
        return {None: self.read(self.owner)}

    def put(self, key: Any, value: Any) -> None:
        if self.write is not None:
            self.write(self.owner, value)

    def restore(self) -> None:
        if self.write is not None and self.is_changed():
            self.write(self.owner, self.before[None])

    def name(self, key: Any) -> str:
        return str(self.path)
