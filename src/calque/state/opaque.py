"""Objects that provide their state only by a protocol: random generators, iterators, open files.

Their state is read by Python's reduction protocol, or by a method that returns their position. Most
of them advance when used and cannot be reset, so a program that advances one cannot serve a second
call.
"""

import contextvars
import gc
import io
import random
import sys
import types
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from calque.errors.handlers import is_of_handler
from calque.state.values import ATOMIC, same_value

_DEEPEST = 8
_REDUCING = ("__reduce__", "__reduce_ex__", "__getstate__")
_MOVING = (
    random.Random,
    np.random.RandomState,
    np.random.Generator,
    np.random.BitGenerator,
    types.GeneratorType,
    types.CoroutineType,
    types.AsyncGeneratorType,
    io.IOBase,
)


_COPYING = frozenset(
    (
        *("__reduce__", "__reduce_ex__", "__getstate__", "__copy__", "dumps", "length_hint"),
        *("__length_hint__", "gi_frame", "cr_frame", "ag_frame", "gi_yieldfrom"),
    )
)
"""Names by which code reads how far something has advanced, without using it; `copy.copy` and
`copy.deepcopy` contain some of them.
"""
_STATES = frozenset(("getstate", "get_state", "state", "bit_generator", "tell", "spawn"))
"""Such names that iterators do not have."""
_HASHING = frozenset(
    ("_hashlib", "_md5", "_sha1", "_sha2", "_sha256", "_sha512", "_sha3", "_blake2")
)
"""The modules of the classes of hash objects."""


def moves(value: object) -> bool:
    """Returns True if an object advances when it is used."""
    return issubclass(type(value), _MOVING)


def is_read_by(value: object, words: Collection[str]) -> bool:
    """Returns True if code with these words may read how far an object has advanced."""
    return not _COPYING.isdisjoint(words) or (moves(value) and not _STATES.isdisjoint(words))


class Opaque(NamedTuple):
    """How to read and restore an object's state.

    Attributes:
        read: returns its state as comparable values.
        write: restores its state; None if that is impossible.
        guarded: whether its state matters to a program that does not change it, unlike that of a
            generator.
        inner: the objects from which it takes items.
    """

    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None] | None
    guarded: bool
    inner: tuple[Any, ...] = ()


def opaque(value: object) -> Opaque | None:
    """Returns the handling of an object without attributes; None if it is not known."""
    if isinstance(value, random.Random):
        system = isinstance(value, random.SystemRandom)
        return None if system else Opaque(_getstate, lambda o, s: o.setstate(s), False)
    if isinstance(value, np.random.RandomState):
        return Opaque(_numpy_state, _set_numpy_state, False)
    if isinstance(value, np.random.Generator):
        bits = value.bit_generator
        return Opaque(lambda o: comparable(bits.state), None, False)
    if isinstance(value, np.random.BitGenerator):
        return Opaque(lambda o: comparable(o.state), None, False)
    if isinstance(value, types.GeneratorType | types.CoroutineType | types.AsyncGeneratorType):
        return Opaque(_progress, None, False)
    if isinstance(value, io.IOBase):
        return Opaque(_position, None, isinstance(value, io.StringIO | io.BytesIO))
    if isinstance(value, Iterator):
        return None if _tells_nothing(value) else Opaque(_reduced, None, False, _stands_on(value))
    if type(value).__module__ in _HASHING and hasattr(value, "digest"):
        return Opaque(_digest, None, True)
    if isinstance(value, contextvars.Context):
        return Opaque(lambda o: tuple(o.items()), None, True)
    if _reduced(value) is None or _tells_nothing(value):
        return Opaque(_referents, None, True) if _referents(value) else None
    return Opaque(_reduced, None, True)


def objects_in(state: Any) -> Iterator[Any]:
    """Yields the objects in a state that was read: what they hold is state as well."""
    if type(state) is tuple:
        for item in state:
            yield from objects_in(item)
    elif isinstance(state, types.BuiltinFunctionType):
        whose = state.__self__  # as of `csv.writer(file)`, which keeps `file.write`
        if whose is not None and not isinstance(whose, type | types.ModuleType):
            yield whose
    elif not isinstance(state, type | types.ModuleType):
        yield state


def _referents(value: Any) -> tuple[Any, ...]:
    """Returns the objects that an object refers to, without classes and modules."""
    found = gc.get_referents(value)
    return tuple(item for item in found if not isinstance(item, type | types.ModuleType))


def comparable(value: Any, depth: int = _DEEPEST) -> Any:
    """Returns a state as nested tuples of plain values and other objects themselves."""
    kind = type(value)
    if kind in ATOMIC or depth == 0:
        return value
    if isinstance(value, np.ndarray) and value.dtype != np.object_:
        return (value.shape, value.dtype.str, value.tobytes())
    if isinstance(value, np.generic):
        return (value.dtype.str, value.tobytes())
    if kind is tuple or kind is list:
        return tuple(comparable(item, depth - 1) for item in value)
    if kind is dict:
        return tuple((k, comparable(v, depth - 1)) for k, v in value.items())
    return value


def _getstate(value: random.Random) -> Any:
    return value.getstate()


def _numpy_state(value: np.random.RandomState) -> Any:
    return comparable(value.get_state(legacy=True))


def _set_numpy_state(value: np.random.RandomState, state: Any) -> None:
    name, (_, dtype, raw), *rest = state
    value.set_state((name, np.frombuffer(raw, dtype), *rest))


def _progress(value: object) -> Any:
    for name in ("gi_frame", "cr_frame", "ag_frame"):
        frame = getattr(value, name, None)
        if frame is not None:
            # its position and variables, because a loop returns to the same position
            return (frame.f_lasti, *((n, comparable(v)) for n, v in frame.f_locals.items()))
    return None


def _position(value: io.IOBase) -> Any:
    if isinstance(value, io.StringIO | io.BytesIO):
        return None if value.closed else (value.tell(), value.getvalue())
    try:
        return value.closed or value.tell()
    except (OSError, ValueError):  # the position is not available, as for a terminal
        return None if value is sys.stdout or value is sys.stderr else object()


def _digest(value: Any) -> str:
    """Returns what a hash object has computed."""
    try:
        return value.hexdigest()
    except TypeError:  # of any length
        return value.hexdigest(32)


def _reduce(value: object) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return value.__reduce_ex__(4)
    except Exception as error:  # a user's protocol may raise; then its state is not known
        if is_of_handler(error):
            raise
        return None


def _reduced(value: object) -> Any:
    found = _reduce(value)
    return found if found is None or isinstance(found, str) else comparable(found)


def _tells_nothing(value: object) -> bool:
    """Returns True if a class's own code, in Python, reduces an object to something different each
    time, although nothing has happened to it.
    """
    own = (getattr(type(value), name, None) for name in _REDUCING)
    is_own = any(isinstance(one, types.FunctionType) for one in own)
    return is_own and not same_value(_reduced(value), _reduced(value))


def _stands_on(value: object) -> tuple[Any, ...]:
    """Returns the iterators from which an iterator takes its items."""
    found = _reduce(value)
    if not isinstance(found, tuple):
        return ()
    rest: list[Any] = list(found[1] or ())
    if len(found) > 2 and isinstance(found[2], tuple):
        rest += found[2]
    return tuple(item for item in rest if isinstance(item, Iterator))
