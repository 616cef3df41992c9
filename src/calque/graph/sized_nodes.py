"""Runs a graph of `torch.export` on arrays, with each size in the form that the graph has.

`(n - 2) // 2 + 1` and `n // 2` are the same size, but JAX does not know that. A pooling layer
yields the first, and PyTorch, which knows that they are equal, uses the second wherever the program
reads this size.
"""

from typing import Any

import torch
from jax import Array, lax
from torch import fx

from calque.errors import TraceError
from calque.graph.array_graph import ArrayNodes
from calque.graph.dimensions import Dimensions
from calque.upstream.jax_internals import is_symbolic_dim


class SizedNodes(ArrayNodes):
    """Gives each result its sizes in the form that the graph has.

    Args:
        module: the graph.
        dimensions: its symbols.
    """

    def __init__(self, module: fx.GraphModule, dimensions: Dimensions) -> None:
        super().__init__(module)
        self._dimensions = dimensions

    def run_node(self, n: fx.Node) -> Any:
        """Like the base class's, but replaces sizes with equal ones in the graph's form."""
        result = super().run_node(n)
        value = n.meta.get("val")
        if not isinstance(value, torch.Tensor) or not isinstance(result, Array):
            return result
        if not any(map(is_symbolic_dim, result.shape)):
            return result
        try:
            shape = self._dimensions.of(value.shape)
        except TraceError:  # not a sum, product or quotient of symbols
            return result
        if shape == result.shape:
            return result
        # The added sizes are 0, so XLA removes this once it knows the sizes.
        added = [(0, to - size, 0) for to, size in zip(shape, result.shape, strict=True)]
        return lax.pad(result, lax.full((), 0, result.dtype), added)
