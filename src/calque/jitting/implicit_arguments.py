"""Implicit arguments: tensors in variables that may differ in each call (a hidden state that the
function rebinds, a gradient that is computed elsewhere).
"""

from typing import Any, Protocol

import torch

from calque.device.memory.cell import cell_of
from calque.jitting.effects import Rebound
from calque.program import signature, trees
from calque.program.gradients.graph_boundary import is_hooked
from calque.program.results import Existing, OwnTensor
from calque.state.rows import Row


class Implicit(Protocol):
    """A source of leaves in addition to those of a call."""

    def expect(self, leaves: list[Any]) -> None:
        """Store the form of the trace's leaves, which later ones must have."""

    def find(self, leaves: list[Any]) -> list[Any] | None:
        """Returns the leaves, given those of the call; None if their form differs."""

    def why(self) -> str:
        """Returns what differs."""
        ...


class HeldIn:
    """The tensors in a variable that the function rebinds."""

    def __init__(self, place: Rebound) -> None:
        self.holder: Row = place.holder
        self.key: Any = place.key
        self.spec: Any = place.spec_before

    def expect(self, leaves: list[Any]) -> None:
        self.keys: list[Any] = [form(leaf) for leaf in leaves]

    def find(self, leaves: list[Any]) -> list[Any] | None:
        found = trees.tensors_in(self.holder.get(self.key))
        if found is None or any(map(is_hooked, found[0])) or not self._is_structured(found[1]):
            return None
        return found[0] if [form(leaf) for leaf in found[0]] == self.keys else None

    def _is_structured(self, spec: Any) -> bool:
        """Returns True for the expected structure; JAX's cannot be compared with None."""
        return type(spec) is type(self.spec) and spec == self.spec

    def why(self) -> str:
        return f"{self.holder.name(self.key)} has other shapes, dtypes or values than before"


class GradientOf:
    """The gradient of a tensor."""

    def __init__(self, tensor: Existing | OwnTensor) -> None:
        self.tensor = tensor

    def expect(self, leaves: list[Any]) -> None:
        self.keys: list[Any] = [form(leaf) for leaf in leaves]

    def find(self, leaves: list[Any]) -> list[Any] | None:
        gradient = _gradient(self.tensor, leaves)
        if gradient is None or vars(gradient) or [form(gradient)] != self.keys:
            return None
        return [gradient]

    def why(self) -> str:
        return "a gradient has another shape, dtype or stride than before"


class GradientAmongArguments:
    """A gradient that is an argument, too, or shares memory with one; it is no other leaf.

    Args:
        tensor: the tensor that has the gradient.
        index: that of the argument.
        is_argument: whether it is the argument itself.
    """

    def __init__(self, tensor: Existing | OwnTensor, index: int, is_argument: bool) -> None:
        self.tensor = tensor
        self.index = index
        self.is_argument = is_argument

    def expect(self, leaves: list[Any]) -> None:
        pass

    def find(self, leaves: list[Any]) -> list[Any] | None:
        gradient, argument = _gradient(self.tensor, leaves), leaves[self.index]
        if gradient is argument:
            return [] if self.is_argument else None
        if self.is_argument or gradient is None or cell_of(gradient) is not cell_of(argument):
            return None
        return []

    def why(self) -> str:
        return f"argument {self.index} was a gradient before"


def _gradient(target: Existing | OwnTensor, leaves: list[Any]) -> torch.Tensor | None:
    tensor = leaves[target.index] if isinstance(target, OwnTensor) else target.tensor
    return tensor.grad


def form(leaf: Any) -> Any:
    """Returns the key of a leaf, with a tensor's geometry in its storage."""
    key = signature.key_of(leaf)
    if not trees.is_tensor(leaf):
        return key
    cell = cell_of(leaf)
    return key, cell.array.shape, cell.array.dtype, cell.stride, leaf.storage_offset()
