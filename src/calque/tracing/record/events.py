"""The events of a recording: calls of PyTorch functions and of modules, in order."""

from typing import Any, NamedTuple

import torch

from calque.tracing.core.origins import NodeOrigin
from calque.tracing.record.values import values_in

Place = tuple[str, int, str]
"""A file, a line and a function."""


class ModuleCall:
    """A call of a module, during and after its run.

    Attributes:
        module: the module that was called.
        path: its qualified name in the recorded program; "" for the root.
        number: how many times it had been called before.
        parent: the call of the module around it.
        args, kwargs, result: those of the call, with values instead of tensors.
        training: its mode when it was called.
        is_changed: whether the program changed the module before the call, so that a later call may
            differ.
        is_open: whether the call cannot be one node because of something inside it.
        grad: see `RecordedCall`.
        place: where it was called.
    """

    __slots__ = (
        *("args", "grad", "is_changed", "is_open", "kwargs", "module", "number", "parent"),
        *("path", "place", "result", "training"),
    )

    def __init__(
        self, module: torch.nn.Module, path: str, number: int, parent: "ModuleCall | None"
    ) -> None:
        self.module: torch.nn.Module = module
        self.path: str = path
        self.number: int = number
        self.parent: ModuleCall | None = parent
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.result: Any = None
        self.training: bool = module.training
        self.is_changed = self.is_open = False
        self.grad: bool | None = None
        self.place: Place | None = None

    def open(self) -> None:
        """Mark the call as different from what the module does on its own."""
        call: ModuleCall | None = self
        while call is not None:
            call.is_open = True
            call = call.parent

    def __repr__(self) -> str:
        return f"{type(self.module).__name__} {self.path or '(the program)'}"

    def origin(self) -> NodeOrigin | None:
        """Returns where it was called."""
        return _origin(self.place, self.parent)


class Begin(NamedTuple):
    """A module is called."""

    call: ModuleCall


class ModuleEnd(NamedTuple):
    """The call of a module returns."""

    call: ModuleCall


class RecordedCall:
    """A call of a PyTorch function, as the program wrote it.

    Attributes:
        target: the function.
        args, kwargs, result: those of the call, with values instead of tensors.
        module: the module call that contains it.
        place: the line of the program.
        operators: the number of ATen operators that it ran.
        reads: a tuple with the value that the program got, if it depends on the values of tensors;
            it is a guard when the recording is replayed.
        what: for a guard, a description of what was read.
        reads_values, has_dynamic_shape: whether one of its operators reads values, or has a result
            whose shape depends on values.
        is_counted: whether the number of parts in the result depends on values.
        grad: whether gradients were enabled, if this differs from the program's own thread;
            otherwise None.
    """

    __slots__ = (
        *("args", "grad", "has_dynamic_shape", "is_counted", "kwargs", "module", "operators"),
        "place",
        *("reads", "reads_values", "result", "target", "what"),
    )

    def __init__(
        self,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        module: ModuleCall | None,
        place: Place | None,
    ) -> None:
        self.target: Any = target
        self.args: tuple[Any, ...] = args
        self.kwargs: dict[str, Any] = kwargs
        self.module: ModuleCall | None = module
        self.place: Place | None = place
        self.result: Any = None
        self.operators = 0
        self.reads: tuple[Any, ...] = ()
        self.what = ""
        self.grad: bool | None = None
        self.reads_values = self.has_dynamic_shape = self.is_counted = False

    @property
    def name(self) -> str:
        """The name of the function, as the program calls it."""
        if self.target is getattr or self.target is setattr:
            return str(self.args[1])
        return getattr(self.target, "__name__", type(self.target).__name__)

    def __repr__(self) -> str:
        values = ", ".join(map(repr, values_in(self.result)))
        return f"{self.name} -> {values}" if values else self.name

    def origin(self) -> NodeOrigin | None:
        """Returns where the program calls it."""
        return _origin(self.place, self.module)


Event = Begin | ModuleEnd | RecordedCall


def _origin(place: Place | None, module: ModuleCall | None) -> NodeOrigin | None:
    if place is None:
        return None
    if module is None:
        return NodeOrigin(*place)
    return NodeOrigin(*place, module.path, module.number)
