"""Objects that contain tensors, taken apart and rebuilt.

A graph returns tensors in tuples, lists and dictionaries. Other results, such as an output class of
transformers or its cache, are rebuilt when the graph runs: the object is pickled without its
tensors, and each run unpickles a new one with the tensors of that run.
"""

import copy
import dataclasses
import enum
import io
import pickle
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.fx
from torch.fx.node import Argument, base_types

from calque.state import ATOMIC
from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.core.origins import origin_of_code
from calque.tracing.graph.checks import recorded


class ObjectTemplate(NamedTuple):
    """An object without its tensors.

    Attributes:
        data: the pickled object, with an index instead of each tensor.
        kind: the name of the object's class.
    """

    data: bytes
    kind: str

    def __repr__(self) -> str:
        return f"<{self.kind}>"


def take_apart(value: Any) -> tuple[ObjectTemplate, list[Any]]:
    """Returns the object without its tensors and proxies, and a list of them.

    Raises:
        TraceError: the object cannot be pickled, so a run could not create a new one.

    >>> template, parts = take_apart({"a": torch.ones(2), "b": 3})
    >>> rebuilt(template, *parts)
    {'a': tensor([1., 1.]), 'b': 3}
    """
    parts: list[Any] = []
    known: dict[int, int] = {}

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> int | None:
            if not isinstance(obj, (torch.Tensor, torch.fx.Proxy)):
                return None
            if id(obj) not in known:
                known[id(obj)] = len(parts)
                parts.append(obj)
            return known[id(obj)]

    file = io.BytesIO()
    try:
        Pickler(file).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise SymbolicTraceError(
            f"the program returns a {type(value).__name__}, which cannot be pickled ({error}).\n"
            "Return the tensors in a tuple, a dictionary or a data class."
        ) from error
    return ObjectTemplate(file.getvalue(), type(value).__name__), parts


def is_plain(value: object) -> bool:
    """Returns True if a graph can hold a container directly: no class is lost,
    and keys are strings.
    """
    kind = type(value)
    if isinstance(value, dict):
        plain = kind is dict or kind.__module__ == "torch.fx.immutable_collections"
        return plain and all(isinstance(key, str) for key in value)
    plain = kind in (tuple, list) or kind.__module__ == "torch.fx.immutable_collections"
    return plain and isinstance(value, (tuple, list))


def is_made_by_call(value: Any) -> bool:
    """Returns True if calling a dataclass with its fields recreates the object,
    without side effects.
    """
    kind, fields = type(value), dataclasses.fields(value)
    if hasattr(kind, "__post_init__") or not all(field.init for field in fields):
        return False
    makes = next(base for base in kind.__mro__ if "__init__" in vars(base))
    describes = next(base for base in kind.__mro__ if "__dataclass_fields__" in vars(base))
    return makes is describes and attributes_of(value).keys() == {field.name for field in fields}


def attributes_of(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass and the object's other attributes, by name.

    >>> attributes_of(dataclasses.make_dataclass("Pair", ["a", "b"], slots=True)(1, 2))
    {'a': 1, 'b': 2}
    """
    names = [field.name for field in dataclasses.fields(value)]
    held = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return held | getattr(value, "__dict__", {})


@recorded
def made_by(kind: type, *parts: Any) -> Any:
    """Creates a named tuple by its class's constructor, which reads the values of its parts."""
    return kind(*parts)


def asks_when_made(kind: type) -> bool:
    """Returns True if a named tuple class has its own constructor.

    >>> asks_when_made(torch.nn.utils.rnn.PackedSequence), asks_when_made(ObjectTemplate)
    (True, False)
    """
    return not kind.__new__.__module__.startswith("namedtuple_")


@recorded
def with_attributes(kind: type, attributes: dict[str, Any]) -> Any:
    """Creates a dataclass object with these attributes, without calling its constructor."""
    made = object.__new__(kind)
    for name, value in attributes.items():
        object.__setattr__(made, name, value)  # the class may be frozen
    return made


@recorded
def rebuilt(template: ObjectTemplate, *parts: Any) -> Any:
    """Returns a copy of the object that was taken apart, with the given tensors."""

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: int) -> Any:
            return parts[pid]

    return Unpickler(io.BytesIO(template.data)).load()


def mapped(given: object, leaf: Callable[[Any], Any]) -> Any:
    """Returns a program's argument with `leaf` applied to each leaf, in new containers of the same
    classes.

    >>> mapped({"a": (1, [2])}, lambda number: number + 1)
    {'a': (2, [3])}
    """
    if isinstance(given, (tuple, list)) and type(given) is not torch.Size:
        parts = [mapped(part, leaf) for part in given]
        build: Any = type(given)
        return build._make(parts) if hasattr(given, "_fields") else build(parts)
    if isinstance(given, dict):
        made = copy.copy(given)
        for key, part in given.items():
            made[key] = mapped(part, leaf)
        return made
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        made = copy.copy(given)
        for field in dataclasses.fields(given):
            part = mapped(getattr(given, field.name), leaf)
            object.__setattr__(made, field.name, part)  # the class may be frozen
        return made
    return leaf(given)


class Outside:
    """An object that existed before the program ran, which each run returns unchanged.

    It is wrapped so that a module does not become a submodule of the graph.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def is_like(self, other: "Outside") -> bool:
        """Returns True if both refer to the same object."""
        return self.value is other.value


@recorded
def outside(held: Outside) -> Any:
    """Returns the object itself."""
    return held.value


@recorded
def one_object(value: Any) -> Any:
    """Returns a container that the result contains in several places."""
    return value


class GraphResults:
    """The program's results, in the form in which a graph holds them.

    Args:
        tracer: its `given` maps the id of an argument to its node, and its `outside` has the
            objects that existed before.
    """

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer
        self._made: dict[int, tuple[Any, Argument]] = {}
        self._shared: set[int] = set()

    def argument(self, value: Any) -> Argument:
        """Returns the graph's form of one result; objects that a graph cannot hold are rebuilt."""
        self._count(value, set())
        return self._of(value)

    def held(self, value: Any) -> Argument:
        """Returns the graph's form of a value that something keeps which outlives the run.

        Its lists and dictionaries may occur in other such values and in the result.
        """
        self._share(value)
        return self._of(value)

    def _share(self, value: Any) -> None:
        parts: Any = ()
        if is_plain(value):
            parts = value.values() if isinstance(value, dict) else value
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            parts = attributes_of(value).values()
        if is_plain(value) and not isinstance(value, tuple):
            if id(value) in self._shared:
                return
            self._shared.add(id(value))
        for part in parts:
            self._share(part)

    def _count(self, value: Any, seen: set[int]) -> None:
        """Find the containers that occur in several places."""
        if not is_plain(value) or not value:
            return
        if id(value) in seen:
            self._shared.add(id(value))
            return
        seen.add(id(value))
        for part in value.values() if isinstance(value, dict) else value:
            self._count(part, seen)

    def _of(self, value: Any) -> Argument:
        tracer, known = self._tracer, self._made.get(id(value))
        if known is not None:
            return known[1]
        given = tracer.nodes_of.get(id(value))
        if given is not None:
            return given[0]
        if _is_mutable(value) and id(value) in tracer.outside:
            return self._keep(outside, Outside(value))
        if type(value) is torch.Size or hasattr(type(value), "n_sequence_fields"):
            return tracer.create_node("call_function", type(value), (self._parts(value),), {})
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            kind, parts = type(value), self._parts(value)
            if asks_when_made(kind):
                return tracer.create_node("call_function", made_by, (kind, *parts), {})
            return tracer.create_node("call_function", kind, parts, {})
        if dataclasses.is_dataclass(value) and not isinstance(value, (type, dict)):
            found = self._made[id(value)] = value, self._of_dataclass(value)
            return found[1]
        if not is_plain(value):
            found = self._of_object(value)
            if _is_mutable(value):
                self._made[id(value)] = value, found
            return found
        if isinstance(value, dict):
            found: Any = {key: self._of(part) for key, part in value.items()}
        else:
            found = type(value)(self._parts(value))  # pyright: ignore[reportCallIssue]
        if id(value) in self._shared:
            found = tracer.create_node("call_function", one_object, (found,), {})
            self._made[id(value)] = value, found
        return found

    def _of_dataclass(self, value: Any) -> Argument:
        kind, held = type(value), attributes_of(value)
        parts = {name: self._of(part) for name, part in held.items()}
        if is_made_by_call(value):
            return self._tracer.create_node("call_function", kind, (), parts)
        return self._tracer.create_node("call_function", with_attributes, (kind, parts), {})

    def _parts(self, value: Any) -> tuple[Argument, ...]:
        return tuple([self._of(part) for part in value])

    def _of_object(self, value: Any) -> Argument:
        tracer = self._tracer
        if isinstance(value, (torch.Tensor, torch.fx.Proxy, tuple, *base_types)):
            return tracer.create_arg(value)
        if value is None or hasattr(value, "__fx_create_arg__"):
            return tracer.create_arg(value)
        try:
            template, parts = take_apart(value)
        except SymbolicTraceError as error:
            place = origin_of_code(tracer.graph._co_fields)
            raise SymbolicTraceError(f"{place}: {error}") from error
        return self._keep(rebuilt, template, *(tracer.create_arg(part) for part in parts))

    def _keep(self, function: Any, value: Any, *rest: Argument) -> Argument:
        tracer = self._tracer
        name = tracer.get_fresh_qualname(f"_{type(value).__name__.lower()}")
        tracer.keep(name, value)
        constant = tracer.create_node("get_attr", name, (), {})
        return tracer.create_node("call_function", function, (constant, *rest), {})


def _is_mutable(value: Any) -> bool:
    if type(value) in ATOMIC or isinstance(value, (torch.Tensor, torch.fx.Proxy, *base_types)):
        return False
    return not isinstance(value, (tuple, frozenset, type, FunctionType, enum.Enum, np.generic))
