"""Variables that a function closes over: changing one later is an error, not another result."""

import dis
import inspect
from types import CodeType
from typing import Any

import torch

from calque.federated.errors import type_error

_COMPARED = (bool, int, float, complex, str, bytes, tuple, frozenset, type(None))
"""Classes whose values are compared; of all others it must be the same object."""


class Closure:
    """The variables around a function and the globals that its code reads, as they are now.

    Those that the function itself assigns are left out, and so is what cannot be found out.

    Args:
        function: a function of Python's; anything else closes over nothing here.
    """

    def __init__(self, function: Any) -> None:
        function = inspect.unwrap(getattr(function, "__func__", function))
        self._function = function if inspect.isfunction(function) else None
        self._values = self._now()
        self._versions = {name: _versions(value) for name, value in self._values.items()}

    def require_same(self) -> None:
        """Raise unless all variables are what they were.

        Raises:
            FederatedTypeError: one is another; shows both.
        """
        now = self._now()
        for name, before in self._values.items():
            after = now.get(name, before)
            same = type(after) is type(before) and type(after) in _COMPARED and after == before
            name_of = getattr(self._function, "__name__", "")
            if after is not before and not same:
                raise type_error(
                    f"the local function {name_of!r} reads {name!r}, which was {before!r} when it "
                    f"was defined, and is {after!r} now",
                    "Pass it as an argument, or as a default that is fixed where the function is "
                    f"defined: {name}={name}.",
                )
            if _versions(after) != self._versions[name]:
                raise type_error(
                    f"the local function {name_of!r} reads {name!r}, whose tensors have been "
                    "written to since it was defined",
                    "Pass them as arguments, or define the function anew.",
                )

    def _now(self) -> dict[str, Any]:
        if self._function is None:
            return {}
        read, assigned = _names(self._function.__code__)
        cells = zip(self._function.__code__.co_freevars, self._function.__closure__ or ())
        found: dict[str, Any] = {}
        for name, cell in cells:
            try:
                found[name] = cell.cell_contents
            except ValueError:  # nothing has been assigned yet
                continue
        scope = self._function.__globals__
        found |= {name: scope[name] for name in read if name in scope and name not in found}
        return {name: value for name, value in found.items() if name not in assigned}


def _versions(value: Any) -> list[tuple[int, int]]:
    """Which tensors a tensor or a module has, and how often they have been written to."""
    if isinstance(value, torch.nn.Module):
        tensors = [*value.parameters(), *value.buffers()]
    else:
        tensors = [value] if isinstance(value, torch.Tensor) else []
    return [(id(tensor), tensor._version) for tensor in tensors]


def _names(code: CodeType) -> tuple[set[str], set[str]]:
    """The globals that code reads, and what it assigns of globals and of variables around it."""
    read: set[str] = set()
    assigned: set[str] = set()
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL":
            read.add(str(step.argval))
        elif step.opname in ("STORE_GLOBAL", "STORE_DEREF", "DELETE_GLOBAL", "DELETE_DEREF"):
            assigned.add(str(step.argval))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner_read, inner_assigned = _names(constant)
            read |= inner_read
            assigned |= inner_assigned
    return read, assigned
