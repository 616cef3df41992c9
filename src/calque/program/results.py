"""What a traced function returned or left behind, so that each call makes it anew."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jax import Array

from calque.device.memory.cell import META, cell_of, wrap, wrap_strided
from calque.device.memory.geometry import Ints, View
from calque.program.structures import getattr_of


class Outputs:
    """The arrays of one call, and what was made of them so far.

    Attributes:
        arrays: what the program gave.
        leaves: the arguments.
        given: the call's (args, kwargs).
        storages: the tensors over whole arrays, by output.
        made: what several places hold, by description.
        carried: the tensors that have a graph behind them (see `carrying`).
        kept: what the call has left in the state and returns, too.
    """

    __slots__ = ("arrays", "carried", "given", "kept", "leaves", "made", "storages")

    def __init__(self, arrays: list[Array], leaves: list[Any], given: Any = None) -> None:
        self.arrays = arrays
        self.leaves = leaves
        self.given = given
        self.storages: dict[int, torch.Tensor] = {}
        self.made: dict[Any, Any] = {}
        self.carried: list[torch.Tensor] = []
        self.kept: list[Any] = []


class Description(Protocol):
    """What stands for a tensor, or a leaf of a result, in a program."""

    def build(self, outputs: Outputs) -> Any:
        """What a call gets."""
        ...


class Made:
    """What each call makes anew.

    Attributes:
        shared: whether it stands at several places, which get one and the same.
        attributes: gives what Python has been told about the tensor; None if that is nothing.
    """

    shared = False
    attributes: "Callable[[Outputs], dict[str, Any]] | None" = None

    def build(self, outputs: Outputs) -> Any:
        """What a call gets."""
        if not self.shared:
            return self.make(outputs)
        made = outputs.made.get(self)
        if made is None:
            made = outputs.made[self] = self.make(outputs)
            if self.attributes is not None:
                vars(made).update(self.attributes(outputs))
        return made

    def make(self, outputs: Outputs) -> Any:
        """Another one."""
        raise NotImplementedError


@dataclass(frozen=True)
class Constant:
    """A Python value."""

    value: Any

    def build(self, outputs: Outputs) -> Any:
        return self.value


@dataclass(frozen=True)
class Given:
    """A container among the call's arguments.

    Attributes:
        steps: the keys that lead to it from (args, kwargs).
    """

    steps: tuple[Any, ...]

    def build(self, outputs: Outputs) -> Any:
        return container_at(self.steps, outputs.given)


@dataclass(frozen=True)
class Kept:
    """A container or an object that the call has left in the state.

    Attributes:
        index: its place among those.
    """

    index: int

    def build(self, outputs: Outputs) -> Any:
        return outputs.kept[self.index]


class Attribute(str):
    """A step to an attribute of an object, rather than to an item."""

    __slots__ = ()


def container_at(steps: Iterable[Any], given: Any) -> Any:
    """What some keys lead to from a call's (args, kwargs)."""
    for step in steps:
        if type(step) is Attribute:
            held = getattr_of(given, "__dict__", {})
            given = held[step] if step in held else getattr_of(given, step)
        elif isinstance(given, dict):
            given = dict.__getitem__(given, step)
        else:
            given = given[step]
    return given


@dataclass(eq=False)
class Copied(Made):
    """A CPU tensor or an array of numpy made in the trace."""

    value: Any

    def make(self, outputs: Outputs) -> Any:
        return self.value.clone() if isinstance(self.value, torch.Tensor) else self.value.copy()


@dataclass(frozen=True)
class Existing:
    """A tensor from outside, returned as it is."""

    tensor: torch.Tensor

    def build(self, outputs: Outputs) -> torch.Tensor:
        return self.tensor


@dataclass(frozen=True)
class Argument:
    """One of the call's own tensors."""

    index: int

    def build(self, outputs: Outputs) -> torch.Tensor:
        return outputs.leaves[self.index]


@dataclass(frozen=True)
class Handed(Argument):
    """An argument that lies in its storage as in the trace: so do all that nobody passed."""


@dataclass(eq=False)
class Fresh(Made):
    """A tensor over a new storage.

    Attributes:
        output: which output of the program is the storage's array.
        stride: the strides of the storage's array; None for row-major.
        view: the tensor's geometry, if it does not see the whole storage; else None.
        dtype: the tensor's dtype.
        leaf: what it is as a leaf of PyTorch's graph; None if it requires no gradient.
    """

    output: int
    stride: Ints | None
    view: View | None
    dtype: torch.dtype
    leaf: "Leaf | None" = None

    def make(self, outputs: Outputs) -> torch.Tensor:
        tensor = self.bare(outputs)
        return tensor if self.leaf is None else self.leaf.of(tensor, outputs)

    def bare(self, outputs: Outputs) -> torch.Tensor:
        """The tensor, as if it required no gradient."""
        base = outputs.storages.get(self.output)
        if base is None:
            array = outputs.arrays[self.output]
            base = wrap(array) if self.stride is None else wrap_strided(array, self.stride)
            outputs.storages[self.output] = base
            if self.view is None:
                return base
        if self.view is None:
            return base.detach()
        return over(base, self.view, self.dtype)


@dataclass(frozen=True)
class Leaf:
    """That a tensor is a leaf of PyTorch's graph.

    Attributes:
        parameter: whether it is a `Parameter`.
        requires_grad: whether it requires a gradient.
        gradient: the one it has; None if it has none.
    """

    parameter: bool
    requires_grad: bool
    gradient: Any

    def of(self, tensor: torch.Tensor, outputs: Outputs) -> torch.Tensor:
        """A tensor as such a leaf."""
        if self.parameter:
            tensor = torch.nn.Parameter(tensor, self.requires_grad)
        else:
            tensor.requires_grad_(self.requires_grad)
        if self.gradient is not None:
            tensor.grad = self.gradient.build(outputs)
        return tensor


@dataclass(eq=False)
class ViewOf(Made):
    """A new view of a tensor from outside, or of an argument.

    Attributes:
        base: of what.
        view, dtype: the view's own.
        differentiable: whether gradients flow through it to the base, or would after a write.
        leaf: what it is as a leaf of PyTorch's graph; None if it requires no gradient.
    """

    base: Existing | Argument
    view: View
    dtype: torch.dtype
    differentiable: bool = False
    leaf: Leaf | None = None

    def make(self, outputs: Outputs) -> torch.Tensor:
        base, view = self.base.build(outputs), self.view
        if type(self.base) is Argument and (offset := base.storage_offset()):
            # The trace saw the argument at the start of its storage.
            moved = view.offset + offset * base.itemsize // self.dtype.itemsize
            view = View(view.size, view.stride, moved)
        if self.differentiable:
            return _seen_as(base, self.dtype, view)
        made = over(base.detach(), view, self.dtype)
        return made if self.leaf is None else self.leaf.of(made, outputs)


def over(base: torch.Tensor, view: View, dtype: torch.dtype) -> torch.Tensor:
    """A tensor over another one's storage, of which autograd knows nothing."""
    cell_of(base).viewed = True
    tensor = torch.empty(0, dtype=dtype, device="jax")
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
        META, tensor, base.untyped_storage(), view.offset, view.size, view.stride
    )
    return tensor


def _seen_as(base: torch.Tensor, dtype: torch.dtype, view: View) -> torch.Tensor:
    """A view of a tensor through which gradients flow."""
    if base.is_complex() and not dtype.is_complex:
        return torch.view_as_real(base).as_strided(*view)
    if dtype.is_complex and not base.is_complex():
        steps = [2 * step for step in view.stride]
        pairs = base.as_strided((*view.size, 2), (*steps, 1), 2 * view.offset)
        return torch.view_as_complex(pairs)
    return base.as_strided(*view)


class Inseparable(Exception):
    """Arguments whose storage must be seen as a whole: the trace is to be made again so."""

    def __init__(self, indexes: Iterable[int]) -> None:
        self.indexes = frozenset(indexes)
