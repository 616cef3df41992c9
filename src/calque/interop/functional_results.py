"""The result of a traced function: its tensors, and a function that replaces them with arrays."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jax import Array

from calque.program import trees
from calque.program.structures import opened
from calque.state.values import ATOMIC

_Part = Callable[[Iterator[Any]], Any]


class FlatResults:
    """A flattened result, including objects that hold tensors (a dataclass).

    Attributes:
        tensors: the tensors in it.
    """

    def __init__(self, tree: Any) -> None:
        self.tensors: list[torch.Tensor] = []
        leaves, self._spec = trees.flatten(tree)
        self._parts = list(map(self._part, leaves))

    def _part(self, leaf: object) -> _Part:
        if isinstance(leaf, torch.Tensor):
            self.tensors.append(leaf)
            return next
        found = None if type(leaf) in ATOMIC else opened(leaf)
        if found is None or not any(isinstance(one, torch.Tensor) for one in found[0]):
            return lambda items: leaf
        leaves, structure = found
        parts = list(map(self._part, leaves))
        return lambda items: structure.build([part(items) for part in parts])

    def of(self, arrays: list[Array]) -> Any:
        """Returns the result with arrays for its tensors."""
        items = iter(arrays)
        return trees.unflatten([part(items) for part in self._parts], self._spec)
