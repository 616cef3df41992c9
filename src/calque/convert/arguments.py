"""The arguments of a saved program: its parameters, and the positions of tensors in them.

In a file, an argument is `{"value": "x"}` for the input x, a list, `{"tuple": [...]}` or
`{"dict": [[key, ...], ...]}` of arguments, or the value itself if it is not a tensor.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.fx.node import Node

from calque.convert.errors import ConversionError

_ATOMS = (bool, int, float, str, type(None))
_DEPTH = 50


def written(placeholders: Sequence[Node], names: Iterable[str]) -> list[Any] | None:
    """Returns the arguments in the form of a file; None if a file cannot store them.

    Starred parameters without arguments are left out.

    Args:
        placeholders: the inputs of the graph, whose `val` are the arguments of its example.
        names: the names of the tensors in them, in order.
    """
    rest = iter(names)
    starred = [node for node in placeholders if str(node.target).startswith("*")]
    if any(node.meta.get("val") for node in starred):
        return None
    placeholders = [node for node in placeholders if node not in starred]
    try:
        return [[str(n.target), _written(n.meta["val"], rest)] for n in placeholders]
    except (KeyError, TypeError):
        return None


def _written(value: object, names: Iterator[str]) -> Any:
    if isinstance(value, torch.Tensor):
        return {"value": next(names)}
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError
        return {"dict": [[key, _written(part, names)] for key, part in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_written(part, names) for part in value]}
    if isinstance(value, list):
        return [_written(part, names) for part in value]
    if isinstance(value, _ATOMS) and not (isinstance(value, float) and not math.isfinite(value)):
        return value
    raise TypeError


class ArrayArguments:
    """Finds the arrays in the arguments of a call.

    Args:
        content: the content of the file.
        names: the names of the inputs, in order.

    Raises:
        ConversionError: the content is not valid.
    """

    def __init__(self, content: Any, names: list[str]) -> None:
        if not isinstance(content, list) or not all(_is_parameter(entry) for entry in content):
            raise ConversionError("arguments must be a list of names with values")
        self._parameters: dict[str, Any] = dict(content)
        found = [name for _, part in content for name in _names(part, 0)]
        if len(self._parameters) != len(content) or found != names:
            raise ConversionError("arguments must contain the inputs, in their order")

    def arrays(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Returns the arrays, in the order of the inputs.

        Raises:
            TypeError: the arguments have a different structure, or a value that is not a tensor
                differs.
        """
        parameters = list(self._parameters)
        if len(args) > len(parameters):
            raise TypeError(f"expected {len(parameters)} arguments, got {len(args)}")
        given = dict(zip(parameters, args))
        twice = given.keys() & kwargs.keys()
        unknown = kwargs.keys() - set(parameters)
        if twice or unknown:
            raise TypeError(
                f"unexpected or repeated arguments {sorted(twice | unknown)}; the parameters are "
                f"{parameters}"
            )
        given |= kwargs
        found: list[Any] = []
        for name, content in self._parameters.items():
            if name in given:
                _collect(content, given[name], name, found)
            elif next(_names(content, 0), None) is not None:
                raise TypeError(f"missing argument {name}")
        return found


def _is_parameter(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)


def _names(content: Any, depth: int) -> Iterator[str]:
    """Yields the inputs in an argument, in order."""
    if depth > _DEPTH:
        raise ConversionError("arguments are nested too deeply")
    if isinstance(content, dict):
        kind, parts = _container(content)
        if kind == "value":
            yield parts
            return
        content = [part for _, part in parts] if kind == "dict" else parts
    elif not isinstance(content, list):
        if not isinstance(content, _ATOMS):
            raise ConversionError(f"arguments contain {content!r}, which does not describe a value")
        return
    for part in content:
        yield from _names(part, depth + 1)


def _container(content: dict[str, Any]) -> tuple[str, Any]:
    fits = {
        "value": lambda part: isinstance(part, str),
        "tuple": lambda part: isinstance(part, list),
        "dict": lambda part: isinstance(part, list) and all(map(_is_parameter, part)),
    }
    for kind, part in content.items():
        if len(content) == 1 and kind in fits and fits[kind](part):
            return kind, part
    raise ConversionError(f"arguments contain {content!r}, which does not describe a value")


def _collect(content: object, given: object, name: str, found: list[Any]) -> None:
    if not isinstance(content, (dict, list)):
        if type(given) is not type(content) or given != content:
            raise TypeError(f"saved with {name}={content!r}, called with {name}={given!r}")
        return
    kind, parts = _container(content) if isinstance(content, dict) else ("list", content)
    if kind == "value":
        found.append(given)
    elif kind == "dict":
        keys = [key for key, _ in parts]
        if not isinstance(given, dict) or given.keys() != set(keys):
            raise TypeError(f"{name} must be a dict with the keys {keys}")
        for key, part in parts:
            _collect(part, given[key], f"{name}[{key!r}]", found)
    else:
        if not isinstance(given, (tuple, list)) or len(given) != len(parts):
            raise TypeError(f"{name} must be a {kind} of {len(parts)} parts")
        for i, (part, value) in enumerate(zip(parts, given)):
            _collect(part, value, f"{name}[{i}]", found)
