"""Arguments of nodes, and how Python values become them.

The table is keyed by exact type because it is used for every argument of every node; the rows of
`_by_protocol` handle subclasses and rarer types.
"""

import enum
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn

import numpy as np
import torch
import torch.fx
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.fx.node import Argument, base_types, map_arg

from calque.state import call_watched
from calque.upstream.torch_internals import HigherOrderOperator, OpOverload, is_opaque_value_type

Lower = Callable[[Any, Any], Any]

_OPERATORS = (OpOverload, HigherOrderOperator)


def lower(tracer: Any, a: Any) -> Argument:
    """Returns `a` in the form in which a node of `tracer`'s graph can hold it.

    Args:
        tracer: the tracer, whose `create_arg` is called for the parts of a container.
        a: the value of an argument.

    Raises:
        NotImplementedError: no row of the table fits the type of `a`.
    """
    row = _BY_TYPE.get(type(a))
    if row is not None:
        return row(tracer, a)
    if isinstance(a, torch.fx.Proxy):
        return a.node
    return call_watched(_by_protocol, tracer, a)  # the class may be the program's


def _by_protocol(tracer: Any, a: Any) -> Any:
    if hasattr(a, "__fx_create_arg__"):
        return a.__fx_create_arg__(tracer)
    if isinstance(a, tuple):
        parts = [tracer.create_arg(part) for part in a]
        return type(a)(*parts) if hasattr(a, "_fields") else type(a)(parts)
    if isinstance(a, list):
        return _list(tracer, a)
    if isinstance(a, dict):
        return _dict(tracer, a)
    if isinstance(a, _OPERATORS) or is_opaque_value_type(type(a)):
        return a
    if is_dataclass(a):
        parts = {field.name: tracer.create_arg(getattr(a, field.name)) for field in fields(a)}
        return tracer.create_node("call_function", type(a), (), parts)
    if isinstance(a, (*base_types, enum.Enum, np.number, np.bool_)):
        return a
    raise NotImplementedError(f"argument of type: {type(a)}")


def _itself(tracer: object, a: object) -> Any:
    return a


def _tuple(tracer: Any, a: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([tracer.create_arg(part) for part in a])


def _list(tracer: Any, a: list[Any]) -> list[Any]:
    return [tracer.create_arg(part) for part in a]


def _slice(tracer: Any, a: slice) -> slice:
    return slice(*(tracer.create_arg(part) for part in (a.start, a.stop, a.step)))


def _range(tracer: Any, a: range) -> range:
    return range(*(tracer.create_arg(part) for part in (a.start, a.stop, a.step)))


def _dict(tracer: Any, a: dict[Any, Any]) -> dict[Any, Any]:
    lowered = {}
    for key, value in a.items():
        if not isinstance(key, str):
            key = tracer.create_arg(key)
            map_arg(key, lambda node, key=key: _no_node_as_key(key))
        lowered[key] = tracer.create_arg(value)
    return lowered


def _no_node_as_key(key: object) -> NoReturn:
    raise RuntimeError(
        f"Keys for dictionaries used as an argument cannot contain a Node. Got key: {key}"
    )


_BY_TYPE: dict[type, Lower] = {
    **dict.fromkeys((*base_types, type(None), type(...), *_OPERATORS), _itself),
    tuple: _tuple,
    list: _list,
    immutable_list: _list,
    dict: _dict,
    immutable_dict: _dict,
    slice: _slice,
    range: _range,
}
