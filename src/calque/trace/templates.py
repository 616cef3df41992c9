"""Objects with tensors somewhere inside, taken apart and put together again.

A graph gives tensors in tuples, lists and dictionaries. What else a program returns, such as an
output class of transformers or its cache, is rebuilt when the graph runs: the object is pickled
with its tensors left out, and each run loads a new one around the tensors of that run.
"""

import dataclasses
import io
import pickle
from typing import Any, NamedTuple

import torch
import torch.fx
from torch.fx.node import Argument, base_types

from calque.trace.checks import recorded
from calque.trace.errors import SymbolicTraceError


class Template(NamedTuple):
    """An object without its tensors.

    Attributes:
        data: the pickled object; in the place of each tensor its index.
        kind: the name of the object's class.
    """

    data: bytes
    kind: str

    def __repr__(self) -> str:
        return f"<{self.kind}>"


def take_apart(value: Any) -> tuple[Template, list[Any]]:
    """The object without its tensors and proxies, and those.

    Raises:
        TraceError: the object cannot be pickled, so that no run could have a new one.

    >>> template, parts = take_apart({"a": torch.ones(2), "b": 3})
    >>> rebuilt(template, *parts)
    {'a': tensor([1., 1.]), 'b': 3}
    """
    parts: list[Any] = []
    known: dict[int, int] = {}

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> int | None:
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
    return Template(file.getvalue(), type(value).__name__), parts


def is_plain(value: Any) -> bool:
    """Whether a graph can hold a container as it is: no class is lost, and keys are strings."""
    kind = type(value)
    if isinstance(value, dict):
        plain = kind is dict or kind.__module__ == "torch.fx.immutable_collections"
        return plain and all(isinstance(key, str) for key in value)
    plain = kind in (tuple, list) or kind.__module__ == "torch.fx.immutable_collections"
    return plain and isinstance(value, (tuple, list))


@recorded
def rebuilt(template: Template, *parts: Any) -> Any:
    """A new object like the one that was taken apart, around other tensors."""

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: int) -> Any:
            return parts[pid]

    return Unpickler(io.BytesIO(template.data)).load()


def result_argument(tracer: Any, value: Any) -> Argument:
    """The form in which a graph holds a result; objects it has no form for are rebuilt."""
    if is_plain(value):
        if isinstance(value, dict):
            return {key: result_argument(tracer, part) for key, part in value.items()}
        return type(value)([result_argument(tracer, part) for part in value])
    known = dataclasses.is_dataclass(value) and not isinstance(value, dict)
    if known or isinstance(value, (torch.Tensor, torch.fx.Proxy, tuple, *base_types)):
        return tracer.create_arg(value)
    if value is None or hasattr(value, "__fx_create_arg__"):
        return tracer.create_arg(value)
    template, parts = take_apart(value)
    name = tracer.get_fresh_qualname("_template")
    tracer.keep(name, template)
    constant = tracer.create_node("get_attr", name, (), {})
    arguments = (constant, *(tracer.create_arg(part) for part in parts))
    return tracer.create_node("call_function", rebuilt, arguments, {})
