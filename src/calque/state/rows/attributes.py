"""Rows of state outside containers: slots, the class of an object, state accessed by functions."""

import functools
from collections.abc import Callable
from types import FunctionType, MemberDescriptorType
from typing import Any

from calque.state.paths import Path
from calque.state.rows.row import Row
from calque.state.values import MISSING

_HEAP_TYPE = 1 << 9

HOOKS_OF_TENSORS: dict[str, Callable[[Any], Any]] = {
    "_backward_hooks": lambda t: t._backward_hooks,
    "_post_accumulate_grad_hooks": lambda t: t._post_accumulate_grad_hooks,
}


class AttributeRow(Row):
    """Attributes outside dicts: slots, the class of an object, the code of a function.

    Args:
        reads: functions that read each attribute, and raise AttributeError if there is no value.
        write: writes an attribute; None if none can be written.
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
        self.reads: dict[str, Callable[[Any], Any]] = reads
        self.write: Callable[[Any, str, Any], None] | None = write
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


class TensorHooksRow(AttributeRow):
    """The hooks of a tensor. They can be removed, but calls do not add them."""

    __slots__ = ()

    settable = False  # pyright: ignore[reportIncompatibleVariableOverride, reportAssignmentType]

    def __init__(self, owner: Any, path: Path) -> None:
        super().__init__(owner, path, HOOKS_OF_TENSORS, set_attribute)


class SlotsRow(AttributeRow):
    """The slots of an object among a call's arguments."""

    __slots__ = ()

    def __init__(self, owner: Any, path: Path) -> None:
        super().__init__(owner, path, slots_of(type(owner)), set_attribute)


@functools.lru_cache(maxsize=4096)
def slots_of(kind: type) -> dict[str, Callable[[Any], Any]]:
    """Returns a function that reads each slot of the objects of a class."""
    found: dict[str, Callable[[Any], Any]] = {}
    for base in kind.__mro__:
        for name, value in vars(base).items():
            if isinstance(value, MemberDescriptorType) and is_made_in_python(base):
                found.setdefault(name, lambda o, get=value.__get__: get(o))
    return found


def is_made_in_python(kind: type) -> bool:
    """Returns True if a class was created in Python, so that objects without a dict have only
    slots.
    """
    return bool(kind.__flags__ & _HEAP_TYPE) and "__module__" in vars(kind)


def set_attribute(owner: object, name: str, value: object) -> None:
    """Calls `object.__setattr__`, or `__delattr__` for MISSING."""
    if value is MISSING:
        object.__delattr__(owner, name)
    else:
        object.__setattr__(owner, name, value)


def function_row(function: FunctionType, path: Path) -> AttributeRow:
    """Returns the code and the defaults of a function."""
    names = ("__code__", "__defaults__", "__kwdefaults__")
    reads = {name: lambda f, name=name: object.__getattribute__(f, name) for name in names}
    return AttributeRow(function, path, reads, set_attribute)


class StateRow(Row):
    """An object with functions that read and set its state."""

    __slots__ = ("read", "write")

    ordered = False

    def __init__(
        self,
        owner: Any,
        path: Path,
        read: Callable[[Any], Any],
        write: Callable[[Any, Any], None] | None = None,
    ) -> None:
        self.read: Callable[[Any], Any] = read
        self.write: Callable[[Any, Any], None] | None = write
        super().__init__(owner, path)
        self.restored = True

    @property
    def settable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return False

    def items(self) -> dict[Any, Any]:
        return {None: self.read(self.owner)}

    def put(self, key: object, value: object) -> None:
        if self.write is not None:
            self.write(self.owner, value)

    def restore(self) -> None:
        if self.write is not None and self.is_changed():
            self.write(self.owner, self.before[None])

    def name(self, key: Any) -> str:
        return str(self.path)
