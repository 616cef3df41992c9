"""Objects with tensors somewhere inside, taken apart and put together again.

A graph gives tensors in tuples, lists and dictionaries. What else a program returns, such as an
output class of transformers or its cache, is rebuilt when the graph runs: the object is pickled
with its tensors left out, and each run loads a new one around the tensors of that run.
"""

import io
import pickle
from typing import Any, NamedTuple

import torch
import torch.fx

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


@recorded
def rebuilt(template: Template, *parts: Any) -> Any:
    """A new object like the one that was taken apart, around other tensors."""

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: int) -> Any:
            return parts[pid]

    return Unpickler(io.BytesIO(template.data)).load()
