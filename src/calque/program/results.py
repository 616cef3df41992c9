"""Descriptions of a traced function's results and other remaining tensors, from which each call
recreates them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jax import Array

from calque.device.memory.geometry import Ints, View
from calque.device.memory.wrapping import wrap, wrap_strided
from calque.program.result_views import Creation, apart, seen_as, set_creation, viewed
from calque.program.structures import getattr_of
from calque.upstream.torch_internals import neg_view


class Outputs:
    """The arrays of one call, and the objects created from them so far.

    Attributes:
        arrays: the outputs of the program.
        leaves: the arguments.
        given: the call's (args, kwargs).
        storages: the tensors over whole arrays, by the index of the output.
        made: objects that occur several times, by description.
        carried: the tensors with an autograd graph (see `escaping_tensors`).
        kept: the objects that the call has stored in the state and also returns.
        containers: the containers among the arguments, if the call changes any of them.
        numbers: the numbers that the call has computed in Python, if there are any.
    """

    numbers: list[Any]

    __slots__ = (
        *("arrays", "carried", "containers", "given", "kept", "leaves", "made", "numbers"),
        "storages",
    )

    def __init__(self, arrays: list[Array], leaves: list[Any], given: Any = None) -> None:
        self.arrays: list[Array] = arrays
        self.leaves: list[Any] = leaves
        self.given: Any = given
        self.storages: dict[int, torch.Tensor] = {}
        self.made: dict[Any, Any] = {}
        self.carried: list[torch.Tensor] = []
        self.kept: list[Any] = []
        self.containers: Containers | None = None


class Description(Protocol):
    """The description of a tensor, or of a leaf of a result, in a program."""

    def build(self, outputs: Outputs) -> Any:
        """Returns the object for a call."""
        ...


class Made:
    """An object that each call creates.

    Attributes:
        shared: whether it occurs several times, as the same object.
        attributed: whether it is a tensor with Python attributes.
        subclass: the tensor's class, if the program gave it a Python subclass.
        conjugate, negative: whether it is the conjugate, or the negative, of what is in its memory.
    """

    shared = False
    attributed = False
    conjugate = negative = False
    subclass: type[torch.Tensor] | None = None

    def build(self, outputs: Outputs) -> Any:
        """Returns the object for a call."""
        if not self.shared:
            return self.make(outputs)
        made = outputs.made.get(self)
        if made is None:
            made = outputs.made[self] = self.make(outputs)
        return made

    def make(self, outputs: Outputs) -> Any:
        """Creates the object."""
        raise NotImplementedError

    def typed(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor as what the described one is of its memory, and of its class."""
        if self.conjugate or self.negative:
            with torch.no_grad():
                tensor = tensor.conj() if self.conjugate else tensor
                tensor = neg_view(tensor) if self.negative else tensor
        return tensor if self.subclass is None else tensor.as_subclass(self.subclass)


@dataclass(frozen=True)
class Constant:
    """A Python value."""

    value: Any

    def build(self, outputs: Outputs) -> Any:
        return self.value


@dataclass(frozen=True)
class ComputedNumber:
    """A number that each call computes in Python.

    Attributes:
        index: its index among these.
    """

    index: int

    def build(self, outputs: Outputs) -> Any:
        return outputs.numbers[self.index]


@dataclass(frozen=True)
class ArgumentContainer:
    """A container among the call's arguments.

    Attributes:
        steps: the path to it from (args, kwargs).
    """

    steps: tuple[Any, ...]

    def build(self, outputs: Outputs) -> Any:
        if outputs.containers is not None:
            return outputs.containers.at(self.steps)
        return container_at(self.steps, outputs.given)


@dataclass(frozen=True)
class KeptContainer:
    """A container or object that the call has stored in the state.

    Attributes:
        index: its index among these.
    """

    index: int

    def build(self, outputs: Outputs) -> Any:
        return outputs.kept[self.index]


class AttributeStep(str):
    """A step to an attribute of an object, rather than to an item."""

    __slots__ = ()


def container_at(steps: Iterable[Any], given: Any) -> Any:
    """Returns the container at a path in a call's (args, kwargs)."""
    for step in steps:
        if type(step) is AttributeStep:
            held = getattr_of(given, "__dict__", {})
            given = held[step] if step in held else getattr_of(given, step)
        elif isinstance(given, dict):
            given = dict.__getitem__(given, step)
        else:
            given = given[step]
    return given


class Containers:
    """Containers among a call's arguments, found before the call changes which holds which.

    Args:
        paths: the paths to them from (args, kwargs).
        given: the call's (args, kwargs).
    """

    def __init__(self, paths: Iterable[tuple[Any, ...]], given: Any) -> None:
        self._found: dict[Any, Any] = {
            (steps, tuple(map(type, steps))): container_at(steps, given) for steps in paths
        }

    def at(self, steps: tuple[Any, ...]) -> Any:
        """Returns the container at a path."""
        return self._found[steps, tuple(map(type, steps))]


@dataclass(eq=False)
class Copied(Made):
    """A CPU tensor or NumPy array created in the trace."""

    value: Any

    def make(self, outputs: Outputs) -> Any:
        return self.value.clone() if isinstance(self.value, torch.Tensor) else self.value.copy()


@dataclass(frozen=True)
class Existing:
    """A tensor from outside, returned unchanged."""

    tensor: torch.Tensor

    def build(self, outputs: Outputs) -> torch.Tensor:
        return self.tensor


@dataclass(frozen=True)
class OwnTensor:
    """One of the call's own tensors."""

    index: int

    def build(self, outputs: Outputs) -> torch.Tensor:
        return outputs.leaves[self.index]


@dataclass(frozen=True)
class UnmovedArgument(OwnTensor):
    """An argument with the same position in its storage as in the trace, such as implicit ones."""


@dataclass(eq=False)
class Fresh(Made):
    """A tensor over a new storage.

    Attributes:
        output: the index of the output that is the storage's array.
        stride: the strides of the storage's array; None for row-major.
        view: the tensor's geometry; None if it covers the whole storage.
        dtype: the tensor's dtype.
        leaf: its properties as an autograd leaf; None if it requires no gradient.
        creation: how it was created, if it is a view for autograd, otherwise None.
        base: its base, if other tensors are related to that, otherwise None.
        inference: whether it is an inference tensor; None if this depends on the mode of the call.
    """

    output: int
    stride: Ints | None
    view: View | None
    dtype: torch.dtype
    leaf: "Leaf | None" = None
    creation: Creation | None = None
    base: Description | None = None
    inference: bool | None = None

    def make(self, outputs: Outputs) -> torch.Tensor:
        if self.inference is None:
            return self._make(outputs)
        with torch.inference_mode(self.inference):
            return self._make(outputs)

    def _make(self, outputs: Outputs) -> torch.Tensor:
        if self.creation is None:
            tensor = self.bare(outputs)
        else:
            base = self.base.build(outputs) if self.base else self._root(outputs).detach()
            assert self.view is not None
            tensor = viewed(base, self.dtype, self.view, self.creation)
        tensor = self.typed(tensor)
        return tensor if self.leaf is None else self.leaf.of(tensor, outputs)

    def bare(self, outputs: Outputs) -> torch.Tensor:
        """Returns the tensor without a view relation and gradients."""
        taken = self.output in outputs.storages
        root = self._root(outputs)
        if self.view is not None:
            return apart(root, self.dtype, self.view)
        return root.detach() if taken else root

    def _root(self, outputs: Outputs) -> torch.Tensor:
        """Returns the tensor over the whole storage, shared within a call."""
        root = outputs.storages.get(self.output)
        if root is None:
            array = outputs.arrays[self.output]
            root = wrap(array) if self.stride is None else wrap_strided(array, self.stride)
            outputs.storages[self.output] = root
        return root


@dataclass(frozen=True)
class Leaf:
    """Makes a tensor an autograd leaf.

    Attributes:
        parameter: whether it is a `Parameter`.
        requires_grad: whether it requires a gradient.
        gradient: its gradient, or None.
    """

    parameter: bool
    requires_grad: bool
    gradient: Any

    def of(self, tensor: torch.Tensor, outputs: Outputs) -> torch.Tensor:
        """Marks and returns a tensor."""
        if self.parameter:
            tensor = torch.nn.Parameter(tensor, self.requires_grad)
        else:
            tensor.requires_grad_(self.requires_grad)
        if self.gradient is not None:
            tensor.grad = self.gradient.build(outputs)
        return tensor


@dataclass(frozen=True)
class Flow:
    """Marks a view through which gradients flow to its base.

    Attributes:
        retains: whether the view retains its gradient.
        gradient: its gradient, or None.
    """

    retains: bool = False
    gradient: Description | None = None

    def of(self, tensor: torch.Tensor, outputs: Outputs) -> None:
        """Marks a view."""
        if self.retains:
            tensor.retain_grad()
        if self.gradient is not None:
            tensor.grad = self.gradient.build(outputs)


@dataclass(eq=False)
class ViewOf(Made):
    """A new view of a tensor from outside, of an argument, or of a leaf created in the trace.

    Attributes:
        base: the base.
        view, dtype: the geometry and dtype of the view.
        flow: how gradients flow through it to the base; None if they do not.
        leaf: its properties as an autograd leaf; None if it requires no gradient.
        creation: how it was created, if it is a view of the base for autograd.
        offset: computes the view's offset, if it differs between calls.
    """

    base: Existing | OwnTensor | Fresh
    view: View
    dtype: torch.dtype
    flow: Flow | None = None
    leaf: Leaf | None = None
    creation: Creation | None = None
    offset: Description | None = None

    def make(self, outputs: Outputs) -> torch.Tensor:
        base, view = self.placed(outputs)
        if self.flow is not None:
            with torch.enable_grad():
                made = self.typed(seen_as(base, self.dtype, view))
            if self.creation is not None:
                set_creation(made, self.creation)
            self.flow.of(made, outputs)
            return made
        if self.creation is not None:
            return self.typed(viewed(base, self.dtype, view, self.creation))
        made = self.typed(apart(base, self.dtype, view))
        return made if self.leaf is None else self.leaf.of(made, outputs)

    def placed(self, outputs: Outputs) -> tuple[torch.Tensor, View]:
        """Returns the base in a call, and the view's position in its storage."""
        base, view = self.base.build(outputs), self.view
        if self.offset is not None:
            view = View(view.size, view.stride, self.offset.build(outputs))
        if type(self.base) is OwnTensor and (offset := base.storage_offset()):
            # In the trace, the argument was at the start of its storage.
            moved = view.offset + offset * base.itemsize // self.dtype.itemsize
            view = View(view.size, view.stride, moved)
        return base, view


class Inseparable(Exception):
    """Signals that whole storages of arguments are needed, so the trace must be repeated."""

    def __init__(self, indexes: Iterable[int]) -> None:
        self.indexes: frozenset[int] = frozenset(indexes)
