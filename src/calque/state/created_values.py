"""Values created in a trace, which each call recreates.

They are pickled, with references for tensors and for all objects that existed before, so that
cycles, shared parts and objects of any class are preserved.
"""

import contextlib
import gc
import io
import pickle
import threading
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from calque.errors import TraceError
from calque.errors.handlers import is_of_handler
from calque.state.created_classes import (
    METHODS,
    class_created_from,
    is_created_again,
    is_of_data_classes,
    method_created_from,
)
from calque.state.ownership import Owner, owner_of_class
from calque.state.plain import (
    bare,
    bare_function,
    base_of,
    closes_over_new,
    content_of,
    content_of_cell,
    content_of_function,
    fill_anew,
    fill_cell,
    fill_function,
    is_local,
    is_method,
    is_plain,
    tells_its_end,
)
from calque.state.rows import is_made_in_python
from calque.state.values import ATOMIC, is_of_objects

_BY_REFERENCE = (type, types.ModuleType, torch.Generator, np.dtype)
_LOCKS: dict[type, Callable[[], Any]] = {
    type(make()): make for make in (threading.Lock, threading.RLock)
}
"""Locks, by class, and what makes one."""
_REFERENCES = (weakref.ref, weakref.KeyedRef)
_PLAIN_LOCK = type(threading.Lock())


class ValuesTemplate:
    """A list of values that `build` recreates.

    Args:
        values: returns the values; describing a tensor may add to them.
        known: objects that keep their identity, by id.
        tensor: returns the description from which each call creates a tensor.
        given: the descriptions of objects in the call's arguments, by id.
        kinds: the classes of the objects for which `tensor` is called.
        number: returns the description of an integer or traced number that differs in each call;
            None for others.

    Attributes:
        unmade: objects that cannot be recreated, and are the same in each call.
    """

    def __init__(
        self,
        values: Callable[[], list[Any]],
        known: Mapping[int, Any],
        tensor: Callable[[torch.Tensor], Any],
        given: Mapping[int, Any],
        kinds: tuple[type, ...] = (torch.Tensor,),
        number: Callable[[int], Any] | None = None,
    ) -> None:
        self._kinds = kinds
        self._number = number
        self.unmade: list[Any] = []
        self._kept: list[Any] = []
        self._codes: list[Any] = []  # code and variables of functions
        self._made: list[Any] = []
        self._examples: list[Any] = []  # of what is made
        self._places: dict[int, Any] = {}
        self._known = known
        self._describe = tensor
        self._given = given
        self._plain: list[Any] | None = values()
        self._failed: Exception | None = None
        self._text = b""
        if not all(self._is_as_it_is(value) for value in self._plain):
            self._plain, count = None, -1
            while count < len(values()):
                count = len(values())
                self._text = self._written(values())
        del self._known, self._describe, self._places, self._given, self._examples
        del self._number, self._failed

    def _written(self, values: list[Any]) -> bytes:
        try:
            return self._dumped(values)
        except Exception as error:  # a class cannot be (un)pickled; find out which value it is
            if self._is_own(error):
                raise
            for value in values:
                try:
                    self._dumped(value)
                except Exception as refused:
                    if self._is_own(refused):
                        raise
                    self.unmade.append(value)
                    self._places[id(value)] = self._keep(value)
            return self._dumped(values)

    def _is_own(self, error: Exception) -> bool:
        """Returns True for an error that does not mean that a class cannot be pickled."""
        return error is self._failed or is_of_handler(error) or isinstance(error, TraceError)

    def _dumped(self, value: object) -> bytes:
        """Returns a pickle that `build` can read, which classes may prevent only then."""
        file = io.BytesIO()
        pickler = _Pickler(file, self._place, self._reduced)
        try:
            pickler.dump(value)
        finally:
            self._failed = pickler.failed
        file.seek(0)
        _Unpickler(file, self._found(self._kept, self._examples)).load()
        return file.getvalue()

    def _reduced(self, value: Any) -> tuple[Any, ...] | None:
        """Returns how to create a value, in the form of `object.__reduce__`; None for the way of
        its class.
        """
        kind = type(value)
        if kind in _LOCKS and not _is_held(value):
            return _LOCKS[kind], ()
        if kind is types.FunctionType:
            return self._take_apart(value)
        if kind is types.CellType:
            return types.CellType, (), content_of_cell(value), None, None, fill_cell
        if kind is types.MethodType:
            return types.MethodType, (value.__func__, value.__self__)
        if kind in _REFERENCES and isinstance(value(), torch.Tensor):
            made = value(), value.__callback__
            return kind, made if kind is weakref.ref else (*made, value.key)
        if kind is types.MappingProxyType:
            return types.MappingProxyType, tuple(gc.get_referents(value))
        if is_created_again(value, self._known):
            return class_created_from(value)
        if kind in METHODS:
            return method_created_from(value)
        if is_created_again(kind, self._known) and is_plain(kind):
            return base_of(kind).__new__, (kind,), content_of(value), None, None, fill_anew
        if is_plain(kind):
            return bare, (kind,), content_of(value), None, None, fill_anew
        return created_from(value)

    def _take_apart(self, function: types.FunctionType) -> tuple[Any, ...]:
        """Returns how to create a function, in the form of `object.__reduce__`."""
        code, variables = function.__code__, function.__globals__
        for one in (code, variables):
            if id(one) not in self._places:
                self._codes.append(one)
                self._places[id(one)] = ("codes", len(self._codes) - 1)
        made = code, variables, function.__closure__
        return bare_function, made, content_of_function(function), None, None, fill_function

    def _is_new_class(self, value: Any) -> bool:
        """Returns True for a class that must be a new one in each call."""
        return isinstance(value, type) and id(value) not in self._known and is_local(value)

    def _found(self, kept: list[Any], made: list[Any]) -> dict[str, list[Any]]:
        return {"kept": kept, "made": made, "codes": self._codes}

    def _keep(self, value: Any) -> tuple[str, int]:
        self._kept.append(value)
        return ("kept", len(self._kept) - 1)

    def _make(self, description: Any, example: Any) -> tuple[str, int]:
        self._made.append(description)
        self._examples.append(example)
        return ("made", len(self._made) - 1)

    def _counted(self, value: Any) -> Any:
        return self._number(value) if self._number is not None and _is_number(value) else None

    def _is_as_it_is(self, value: Any) -> bool:
        return type(value) in ATOMIC and self._counted(value) is None

    def _place(self, value: Any) -> Any:
        place = self._places.get(id(value))
        if place is not None:
            return place
        if type(value) in ATOMIC or _is_number(value):
            count = self._counted(value)
            return None if count is None else self._make(count, value)
        if id(value) in self._given:
            place = self._make(self._given[id(value)], value)
        elif isinstance(value, self._kinds) and not is_of_objects(value):
            place = self._make(self._describe(value), value)
        elif is_created_again(value, self._known):
            return None
        elif id(value) in self._known or _is_by_reference(value):
            place = self._keep(value)
            if closes_over_new(value, self._known) or self._is_new_class(value):
                self.unmade.append(value)
        elif tells_its_end(value):
            self.unmade.append(value)
            place = self._keep(value)
        else:
            return None
        self._places[id(value)] = place
        return place

    @property
    def kept(self) -> list[Any]:
        """Returns the objects that are the same in each call."""
        return self._kept

    @property
    def texts(self) -> str:
        """Returns all text in the values, and possibly more."""
        if self._plain is not None:
            return "\n".join(value for value in self._plain if isinstance(value, str))
        return self._text.decode(errors="replace")

    def build(self, make: Callable[[Any], Any]) -> list[Any]:
        """Returns the values; `make` creates a tensor from the result of `tensor`,
        and resolves `given`.
        """
        if self._plain is not None:
            return self._plain
        made = [make(description) for description in self._made]
        kept = [one() if isinstance(one, _Ending) else one for one in self._kept]
        found = _Unpickler(io.BytesIO(self._text), self._found(kept, made)).load()
        self._release()
        return found

    def _release(self) -> None:
        """Hold objects that tell their end only weakly, once they are where they belong."""
        for index, one in enumerate(self._kept):
            if any(one is value for value in self.unmade) and tells_its_end(one):
                with contextlib.suppress(TypeError):  # its class has no place for weak references
                    self._kept[index] = _Ending(one)
        self.unmade.clear()


def _is_number(value: object) -> bool:
    """Returns True for an integer, or a traced number."""
    return type(value) is int or issubclass(type(value), torch.SymFloat)


def _is_by_reference(value: Any) -> bool:
    if type(value) is types.FunctionType:
        return not is_local(value)
    if type(value) is types.BuiltinFunctionType:
        return not is_method(value)
    return isinstance(value, _BY_REFERENCE) or is_of_data_classes(value)


class _Ending(weakref.ref[Any]):
    """An object that the program must not keep alive."""


class _Pickler(pickle.Pickler):
    def __init__(
        self, file: Any, place: Callable[[Any], Any], reduced: Callable[[Any], Any]
    ) -> None:
        super().__init__(file, protocol=5)
        self._place_of = place
        self._reduced = reduced
        self.failed: Exception | None = None  # the error of one of the functions, if any

    def persistent_id(self, obj: object) -> Any:
        try:
            return self._place_of(obj)
        except Exception as error:
            self.failed = error
            raise

    def reducer_override(self, obj: object) -> Any:
        try:
            return self._reduced(obj) or NotImplemented
        except Exception as error:
            self.failed = error
            raise


def created_from(value: Any) -> tuple[Any, ...] | None:
    """Returns how to create an object of a user's class of tuples, or an exception, without calling
    its class, in the form of `object.__reduce__`; None for other objects.
    """
    kind = type(value)
    _, held, slots = content_of(value) if issubclass(kind, tuple | BaseException) else (0, 0, {})
    if issubclass(kind, tuple) and owner_of_class(kind) is Owner.USER:
        return tuple.__new__, (kind, tuple(tuple.__iter__(value))), (None, held, slots), *_FILLED
    if not issubclass(kind, BaseException) or kind.__reduce__ is not BaseException.__reduce__:
        return None
    if kind.__reduce_ex__ is not object.__reduce_ex__:
        return None
    slots |= {name: getattr(value, name) for name in _CHAIN if getattr(value, name)}
    base = next(one for one in kind.__mro__ if not is_made_in_python(one))
    return base.__new__, (kind, *value.args), (None, held, slots), *_FILLED


_FILLED = (None, None, fill_anew)
_CHAIN = ("__cause__", "__context__", "__suppress_context__")
"""Attributes of exceptions that pickles omit."""


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, places: dict[str, list[Any]]) -> None:
        super().__init__(file)
        self._places = places

    def persistent_load(self, pid: Any) -> Any:
        kind, index = pid
        return self._places[kind][index]


def _is_held(lock: Any) -> bool:
    """Returns True if a lock is held; this thread does not count as the holder of a free one."""
    if not lock.acquire(blocking=False):
        return True
    lock.release()
    return type(lock) is not _PLAIN_LOCK and lock._is_owned()
