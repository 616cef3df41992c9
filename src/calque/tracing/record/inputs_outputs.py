"""The arguments and the result of a recorded program."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.fx.node import base_types

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.graph.templates import (
    ObjectTemplate,
    asks_when_made,
    attributes_of,
    is_made_by_call,
    is_plain,
    made_by,
    mapped,
    take_apart,
    with_attributes,
)
from calque.tracing.record.values import RunValue
from calque.upstream import torch_c

_LAZY = (inspect.isgenerator, inspect.iscoroutine, inspect.isasyncgen)


class CreatedObject(NamedTuple):
    """An object that a graph creates with a call.

    Attributes:
        make: the class.
        args: its positional arguments, parts of the result.
        kwargs: its keyword arguments.
    """

    make: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class GivenContainer(NamedTuple):
    """A list, dictionary or object among the arguments, which the program returns or assigns to.

    Attributes:
        path: the name of the argument, followed by keys, indices, or names of fields.
        is_object: whether an attribute is assigned rather than an item.
    """

    path: tuple[Any, ...]
    is_object: bool

    def found_in(self, given: dict[str, Any]) -> Any:
        """Returns the container at this path in other arguments of the same structure."""
        found: Any = given
        for key in self.path:
            found = getattr(found, key) if _is_record(found) else found[key]
        return found


def place_of(
    wanted: dict[Any, Any], given: Any, path: tuple[Any, ...] = ()
) -> GivenContainer | None:
    """Returns the path in the arguments to a dictionary, or to the object that it belongs to."""
    if given is wanted:
        return GivenContainer(path, False)
    parts: Any = ()
    if isinstance(given, dict):
        parts = given.items()
    elif isinstance(given, (tuple, list)):
        parts = enumerate(given)
    elif _is_record(given):
        if vars(given) is wanted:
            return GivenContainer(path, True)
        parts = ((field.name, getattr(given, field.name)) for field in dataclasses.fields(given))
    places = (place_of(wanted, part, (*path, key)) for key, part in parts)
    return next((place for place in places if place is not None), None)


def containers_in(given: Any, path: tuple[Any, ...] = ()) -> dict[int, GivenContainer]:
    """Returns the places of the lists, dictionaries and objects in the arguments, by their ids."""
    parts: Any = ()
    if type(given) is torch.Size:
        return {}
    if isinstance(given, dict):
        parts = given.items()
    elif isinstance(given, (tuple, list)):
        parts = enumerate(given)
    elif _is_record(given):
        parts = ((field.name, getattr(given, field.name)) for field in dataclasses.fields(given))
    else:
        return {}
    found = {} if isinstance(given, tuple) or not path else {id(given): GivenContainer(path, False)}
    for key, part in parts:
        for one, place in containers_in(part, (*path, key)).items():
            found.setdefault(one, place)
    return found


def _is_record(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, (type, dict))


class Rebuilt(NamedTuple):
    """An object of a class that graphs cannot hold, taken apart."""

    template: ObjectTemplate
    parts: tuple[Any, ...]


def paired(given: Any, other: Any, leaf: Callable[[Any, Any], None]) -> None:
    """Calls `leaf` with the corresponding leaves of two arguments of the same structure."""
    if isinstance(given, (tuple, list)) and type(given) is not torch.Size:
        for a, b in zip(given, other):
            paired(a, b, leaf)
    elif isinstance(given, dict):
        for key, part in given.items():
            paired(part, other[key], leaf)
    elif dataclasses.is_dataclass(given) and not isinstance(given, type):
        for field in dataclasses.fields(given):
            paired(getattr(given, field.name), getattr(other, field.name), leaf)
    else:
        leaf(given, other)


def given_to(recorder: Any, given: Any, twins: list[tuple[RunValue, RunValue]]) -> Any:
    """Returns the argument with values instead of its tensors, and registers the tensors with a
    recorder.

    Args:
        twins: gets a pair for each tensor that is passed twice.
    """

    def leaf(part: Any) -> Any:
        if not isinstance(part, torch.Tensor):
            return part
        known = recorder.values.of(part)
        if known is None:
            value = recorder.values.add(part)
            recorder.given.add(value)
            return value
        twin = RunValue(known.looks)
        twins.append((known, twin))
        return twin

    return mapped(given, leaf)


def _keep_attributes(recorder: Any, tensor: torch.Tensor, value: Any) -> None:
    """Record the attributes that the program has set on a tensor that it created and returns."""
    with torch_c.DisableTorchFunction():
        held = dict(vars(tensor))
    if type(value) is not RunValue or value in recorder.given:
        return
    known = {name for owner, name, _ in recorder.attributes if owner is value}
    for name in held.keys() - known:
        recorder.attributes.append((value, name, None))  # before its own, which may contain it
        place = len(recorder.attributes) - 1
        recorder.attributes[place] = (value, name, result_of(recorder, held[name]))


def result_of(recorder: Any, result: Any) -> Any:
    """Returns the program's result, with values instead of its tensors."""
    if isinstance(result, torch.Tensor):
        found = recorder.arguments.of(result)
        _keep_attributes(recorder, result, found)
        return found
    if isinstance(result, base_types) or result is None:
        return result
    if id(result) in recorder.given_containers:
        return recorder.given_containers[id(result)]
    if is_plain(result):
        if isinstance(result, dict):
            return {key: result_of(recorder, part) for key, part in result.items()}
        return type(result)(result_of(recorder, part) for part in result)
    if type(result) is torch.Size or hasattr(type(result), "n_sequence_fields"):
        return CreatedObject(type(result), (tuple(result_of(recorder, p) for p in result),), {})
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        kind, parts = type(result), tuple(result_of(recorder, part) for part in result)
        return (
            CreatedObject(made_by, (kind, *parts), {})
            if asks_when_made(kind)
            else CreatedObject(kind, parts, {})
        )
    if dataclasses.is_dataclass(result) and not isinstance(result, (type, dict)):
        held = attributes_of(result)
        parts = {name: result_of(recorder, part) for name, part in held.items()}
        if is_made_by_call(result):
            return CreatedObject(type(result), (), parts)
        return CreatedObject(with_attributes, (type(result), parts), {})
    if any(is_lazy(result) for is_lazy in _LAZY):
        kind = type(result).__name__
        recorder.problems.append(
            f"the program returns a {kind}, which computes later; return its values"
        )
        return None
    try:
        template, parts = take_apart(result)
    except SymbolicTraceError as error:
        recorder.problems.append(str(error))
        return None
    return Rebuilt(template, tuple(recorder.arguments.of(part) for part in parts))
