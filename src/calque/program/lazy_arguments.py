"""Placeholders, in a trace, for argument objects that the function may never use.

A batch may contain objects for which no program can be compiled (the encodings of a tokenizer, a
lock), and which differ in each call. As long as the function does not use them, only their class is
guarded; once it uses one, objects of that class are compared by identity.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class Restructure(BaseException):
    """Signals that the arguments of a call must be flattened differently.

    It is not an `Exception`, so that the traced function does not catch it.

    Args:
        opened: classes whose objects are flattened from now on.
        closed: classes whose objects are always compared by identity from now on.
        touched: classes whose objects the function uses.
    """

    def __init__(
        self,
        opened: Iterable[type] = (),
        closed: Iterable[type] = (),
        touched: Iterable[type] = (),
    ) -> None:
        self.opened: frozenset[type] = frozenset(opened)
        self.closed: frozenset[type] = frozenset(closed)
        self.touched: frozenset[type] = frozenset(touched)


class _Watching(threading.local):
    """The classes of the objects that the function has used; None outside a run."""

    touched: set[type] | None = None


_watching = _Watching()


class UnreadObject:
    """A placeholder for an object; every use of it, except reading its class, raises `Restructure`.

    Args:
        value: the object.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        object.__setattr__(self, "value", value)

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return type(value_of(self))
        _touch(self)
        return object.__getattribute__(self, name)


def value_of(unread: UnreadObject) -> Any:
    """Returns the object that a placeholder represents."""
    return object.__getattribute__(unread, "value")


def is_unread(value: object) -> bool:
    """Returns True if a value is a placeholder."""
    return type(value) is UnreadObject


def _touch(unread: UnreadObject) -> None:
    if _watching.touched is not None:
        kind = type(value_of(unread))
        _watching.touched.add(kind)
        raise Restructure(touched=(kind,))


@contextmanager
def watching_objects() -> Iterator[set[type]]:
    """A context manager for running the function; yields the classes of the objects that it
    uses.
    """
    before, touched = _watching.touched, set[type]()
    _watching.touched = touched
    try:
        yield touched
    finally:
        _watching.touched = before


_OPERATORS = (
    *("call", "len", "iter", "next", "reversed", "contains", "getitem", "setitem", "delitem"),
    *("eq", "ne", "lt", "le", "gt", "ge", "hash", "bool", "str", "repr", "format", "bytes"),
    *("int", "float", "complex", "index", "round", "trunc", "floor", "ceil", "fspath"),
    *("neg", "pos", "abs", "invert", "enter", "exit", "await", "aiter", "anext", "aenter", "aexit"),
    *("setattr", "delattr", "dir", "reduce_ex", "get", "set", "delete"),
)
_BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
)


def _operator(name: str) -> Any:
    def operate(self: UnreadObject, *args: Any, **kwargs: Any) -> Any:
        _touch(self)
        return getattr(object, name)(self, *args, **kwargs)

    operate.__name__ = name
    return operate


for _name in (*_OPERATORS, *_BINARY, *(f"{p}{b}" for p in "ri" for b in _BINARY)):
    _dunder = f"__{_name}__"
    setattr(UnreadObject, _dunder, _operator(_dunder))
