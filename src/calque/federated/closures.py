"""The outside state that a function reads, which must not change later."""

import dis
import functools
import inspect
import pickle
import random
import zlib
from collections import deque
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from calque.errors.frames import is_library
from calque.federated.errors import type_error
from calque.federated.positions import is_iterator, position_of

_COMPARED = (bool, int, float, complex, str, bytes, tuple, frozenset, type(None))
"""Classes whose values are compared by equality; objects of other classes are compared by identity.
"""

GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)
_OF_ALL = (random.Random(), np.random.default_rng())
"""Objects that represent the generators that all code shares."""

_JITTED = type(jax.jit(lambda: None))

_MOST = 10_000
"""The maximum number of values to compare."""

_MOST_BYTES = 2**26
"""The maximum number of bytes of an array whose content is compared."""


class Closure:
    """The current closure variables and globals that a function's code reads.

    It includes their contents, as far as they can be found: the items of containers, the attributes
    that the code reads, the values of tensors and arrays. It excludes variables that the function
    itself assigns.

    Args:
        function: a Python function, a method, or a module; other callables are not examined.
    """

    def __init__(self, function: Any) -> None:
        self._roots = _roots(function)
        self._name = getattr(function, "__name__", type(function).__name__)
        self.note()

    def note(self) -> None:
        """Use the current state as the expected one, because the function itself may change it."""
        self._before = _found(self._roots)

    def now(self) -> dict[str, "_Part"]:
        """Returns the current state, including what the function itself assigns or draws."""
        return _all_found(self._roots)

    def changed(self, since: dict[str, "_Part"], of_c: bool = False) -> str | None:
        """Returns what has changed, including changes by the function itself; None if nothing has.

        Args:
            since: the earlier state.
            of_c: whether to compare only random number generators and iterators.
        """
        now = self.now()
        for path, before in since.items():
            after = now.get(path, before)
            if of_c and not (isinstance(before.value, GENERATORS) or is_iterator(before.value)):
                continue
            same = after.value is before.value or _equal(after.value, before.value)
            if not same or after.state != before.state:
                return path
        return None

    def require_same(self) -> None:
        """Raise if anything has changed.

        Raises:
            FederatedTypeError: something has changed; shows both values.
        """
        now = _found(self._roots)
        for path, before in self._before.items():
            after = now.get(path, before)
            if after.value is not before.value and not _equal(after.value, before.value):
                raise type_error(
                    f"the local function {self._name!r} reads {path!r}, which was "
                    f"{before.value!r} when it was defined, and is {after.value!r} now",
                    "Pass it as an argument, or as a default value that is fixed when the "
                    f"function is defined: {path}={path}."
                    if path.isidentifier()
                    else "Pass it as an argument, or define the function again.",
                )
            if after.state != before.state:
                written = "tensors have been written to"
                what = written if before.of_tensors else "content has changed"
                raise type_error(
                    f"the local function {self._name!r} reads {path!r}, whose {what} since it was "
                    "defined",
                    "Pass them as arguments, or define the function again.",
                )


class _Part(NamedTuple):
    """A value that a function reads, and the content that must not change."""

    value: Any
    state: Any = None
    of_tensors: bool = False


def _roots(function: Any) -> list[tuple[str, Any]]:
    """Returns the starting points: a function, and the object that it is a method of."""
    function = inspect.unwrap(function)
    if isinstance(function, MethodType):
        return [("self", function.__self__), ("", inspect.unwrap(function.__func__))]
    if isinstance(function, FunctionType):
        return [("", function)]
    if isinstance(function, torch.nn.Module):
        return []  # traced with its current state
    if isinstance(function, functools.partial):
        given = [("args", function.args), ("keywords", function.keywords)]
        return [*_roots(function.func), *given]
    call = inspect.getattr_static(type(function), "__call__", None)
    return [("self", function), ("", call)] if isinstance(call, FunctionType) else []


def _all_found(roots: list[tuple[str, Any]]) -> dict[str, _Part]:
    """Returns everything reachable, including what code assigns,
    and the next items of iterators.
    """
    found = _found(roots, assigned=True)
    for path, part in found.items():
        if isinstance(part.value, GENERATORS):
            found[path] = _Part(part.value, state_of(part.value))
        elif is_iterator(part.value):
            found[path] = _Part(part.value, position_of(part.value))
    states = states_of_all().items()
    return found | {name: _Part(one, state) for (name, state), one in zip(states, _OF_ALL)}


def states_of_all() -> dict[str, bytes]:
    """Returns the next draws of the shared random generators, by name."""
    numpys = np.random.get_state(legacy=False)
    return {"random": pickle.dumps(random.getstate()), "numpy.random": pickle.dumps(numpys)}


def state_of(generator: Any) -> bytes:
    """Returns the next draw of a generator."""
    if isinstance(generator, random.SystemRandom):  # it has no state
        return b""
    if isinstance(generator, random.Random):
        return pickle.dumps(generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return pickle.dumps(generator.get_state(legacy=False))
    return pickle.dumps(generator.bit_generator.state)


def _found(roots: list[tuple[str, Any]], assigned: bool = False) -> dict[str, _Part]:
    """Returns everything reachable, by its name in the program;
    with assigned variables on request.
    """
    names: set[str] = set()
    while True:  # repeat: new code may read attributes of objects found before
        reader = _Reader(names, assigned)
        reader.read(roots)
        if reader.names <= names:
            return reader.found
        names = names | reader.names


class _Reader:
    """Walks over everything that a function reads; for objects, the attributes that code reads."""

    def __init__(self, names: set[str], assigned: bool) -> None:
        self._assigned = assigned
        self.found: dict[str, _Part] = {}
        self.names: set[str] = set()
        self._wanted = names
        self._seen: dict[int, Any] = {}

    def read(self, roots: list[tuple[str, Any]]) -> None:
        """Visit these values and everything they refer to."""
        waiting: deque[tuple[str, Any]] = deque()
        for path, value in roots:
            if path:
                waiting.append((path, value))
            else:  # the function itself, even a library's
                self._seen[id(value)] = value
                waiting.extend(self._of_code(value))
        while waiting and len(self.found) < _MOST:
            path, value = waiting.popleft()
            if path in self.found:
                continue
            self.found[path] = _part(value)
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                waiting.extend(self._inside(path, value))

    def _inside(self, path: str, value: object) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            yield from ((f"{path}[{key!r}]", item) for key, item in list(value.items()))
        elif isinstance(value, list | tuple | deque):
            yield from ((f"{path}[{i}]", item) for i, item in enumerate(list(value)))
        elif isinstance(value, functools.partial):
            yield from ((path, value.func), (f"{path}.args", value.args))
            yield f"{path}.keywords", value.keywords
        elif isinstance(value, MethodType):
            yield f"{path}.__self__", value.__self__
            yield from self._of_function(value.__func__)
        elif isinstance(value, FunctionType | _JITTED):
            yield from self._of_function(value)
        elif _has_attributes(value):
            yield from self._of_object(path, value)

    def _of_object(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        held = vars(value)
        yield from ((f"{path}.{name}", held[name]) for name in sorted(self._wanted & held.keys()))
        methods = {"forward", "__call__", *self._wanted}
        for name in sorted(methods):
            method = inspect.getattr_static(type(value), name, None)
            method = method.fget if isinstance(method, property) else method
            if isinstance(method, FunctionType):
                yield from self._of_function(method)
        if isinstance(value, torch.nn.Module):
            yield from ((f"{path}.{name}", sub) for name, sub in value.named_children())

    def _of_function(self, function: Any) -> Iterator[tuple[str, Any]]:
        function = inspect.unwrap(function)
        if not isinstance(function, FunctionType) or is_library(function.__code__.co_filename):
            return
        self._seen[id(function)] = function
        for name, value in self._of_code(function):
            yield f"{name} of {function.__qualname__}", value

    def _of_code(self, function: FunctionType) -> Iterator[tuple[str, Any]]:
        """Yields the variables that a function reads, and its defaults."""
        read, assigned, attributes = _names(function.__code__)
        self.names |= attributes
        found: dict[str, Any] = dict(function.__kwdefaults__ or {})
        defaults = function.__defaults__ or ()
        code = function.__code__
        count = code.co_argcount
        found |= zip(code.co_varnames[count - len(defaults) : count], defaults)
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # the cell is empty
                continue
        scope = function.__globals__
        found |= {name: scope[name] for name in read if name in scope and name not in found}
        left_out = set() if self._assigned else assigned
        yield from ((name, value) for name, value in found.items() if name not in left_out)


def _part(value: object) -> _Part:
    if isinstance(value, torch.nn.Module):
        tensors = [*value.parameters(), *value.buffers()]
        return _Part(value, [(id(tensor), tensor._version) for tensor in tensors], True)
    if isinstance(value, torch.Tensor):
        return _Part(value, value._version, True)
    if isinstance(value, np.ndarray) and value.dtype != object and value.nbytes <= _MOST_BYTES:
        return _Part(value, zlib.crc32(np.ascontiguousarray(value).tobytes()))
    if isinstance(value, dict):
        return _Part(value, list(map(repr, value)))
    if isinstance(value, list | deque):
        return _Part(value, len(value))
    if isinstance(value, set):
        return _Part(value, frozenset(value))
    if isinstance(value, MethodType):
        return _Part(value.__func__)
    return _Part(value)


def _equal(first: Any, second: Any) -> bool:
    """Returns True for equal values of the same class, including the items of tuples."""
    if type(first) is not type(second) or type(first) not in _COMPARED:
        return False
    if isinstance(first, tuple):
        pairs = zip(first, second)
        return len(first) == len(second) and all(a is b or _equal(a, b) for a, b in pairs)
    return first == second


def _has_attributes(value: object) -> bool:
    """Returns True for an object whose attributes can be read without running code."""
    whole = type | ModuleType | BuiltinFunctionType | torch.Tensor | jax.Array
    if isinstance(value, whole) or not isinstance(getattr(value, "__dict__", None), dict):
        return False
    return not type(value).__module__.startswith(("calque.", "jax", "numpy"))


def _names(code: CodeType) -> tuple[set[str], set[str], set[str]]:
    """Returns the globals that code reads, the globals and enclosing variables that it assigns, and
    the attributes that it reads.
    """
    read: set[str] = set()
    assigned: set[str] = set()
    attributes: set[str] = set()
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL":
            read.add(str(step.argval))
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.add(str(step.argval))
        elif step.opname in ("STORE_GLOBAL", "STORE_DEREF", "DELETE_GLOBAL", "DELETE_DEREF"):
            assigned.add(str(step.argval))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            for names, inner in zip((read, assigned, attributes), _names(constant)):
                names |= inner
    return read, assigned, attributes
