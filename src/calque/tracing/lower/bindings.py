"""The inputs that a graph is lowered with."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.graph import CodeGen
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node
from torch.utils import _pytree as pytree

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.graph import checks
from calque.tracing.graph.codegen import Faithful
from calque.upstream import torch_c

_PLAIN = (torch.Tensor, bool, int, float, complex, str, type(None), type(...))


class Inputs:
    """An example call of a graph, its tensors abstract.

    Attributes:
        placeholders: those of the graph.
        values: what each of them is given; tensors are FakeTensors.
        tensors: all tensors among the values, in order.
    """

    def __init__(
        self, graph: GraphModule, args: tuple, kwargs: dict[str, Any], mode: FakeTensorMode
    ) -> None:
        self.placeholders: list[Node] = graph.graph.find_nodes(op="placeholder")
        if args or kwargs:
            given = _bound(graph, args, kwargs)
        else:
            given = [_remembered(node) for node in self.placeholders]
        self._refuse_objects(given)
        self.values = pytree.tree_map_only(torch.Tensor, lambda t: _abstract(t, mode), given)
        leaves = pytree.tree_leaves(self.values)
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def _refuse_objects(self, given: Sequence[Any]) -> None:
        for node, value in zip(self.placeholders, given, strict=True):
            for leaf in pytree.tree_leaves(value):
                if not isinstance(leaf, _PLAIN):
                    raise SymbolicTraceError(
                        f"{node.target} is given a {type(leaf).__name__}, which cannot be lowered."
                        "\nPass tensors and numbers, in tuples, lists and dictionaries."
                    )

    def filled(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """The values, with other tensors in the place of theirs."""
        rest = iter(tensors)
        return pytree.tree_map_only(torch.Tensor, lambda _: next(rest), self.values)


def _bound(graph: GraphModule, args: tuple, kwargs: dict[str, Any]) -> list[Any]:
    bound = inspect.signature(graph.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    if type(graph.graph._codegen) in (CodeGen, Faithful):
        return list(bound.arguments.values())
    return list(graph.graph.process_inputs(*bound.args))


def _remembered(node: Node) -> Any:
    """What the graph was traced with, as far as it says."""
    if "val" in node.meta:
        return node.meta["val"]
    for user in node.users:
        if user.target is checks.expect_value:
            return user.args[1]
    if node.args:
        return node.args[0]
    raise SymbolicTraceError(
        f"nothing is known of the input {node.target}.\nGive example inputs: lower(graph, x)."
    )


def _abstract(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """A FakeTensor of its own, even for a tensor that is given twice."""
    with mode, torch_c.DisableTorchFunction():
        made = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )
        return made.requires_grad_(tensor.requires_grad)
