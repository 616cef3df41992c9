"""Guards of values in a lowered graph, for reads by Python that are not operators.

A recording checks the values that the program has read (`expect_answer`). The values are not known
while lowering, so the read becomes a node again, which reads a copy of the tensor made at that
point.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.fx.graph import Graph
from torch.fx.node import Node, base_types

from calque.tracing.graph.value_guards import HOST, expect_answer


class PendingAnswer(NamedTuple):
    """A placeholder for an answer that is not known yet."""

    node: Node


class GuardedRead(NamedTuple):
    """A node that reads values, and is a guard of the graph.

    Attributes:
        node: the node, in the graph that is lowered.
        args, kwargs: its arguments, with copies of tensors.
        tensors: the copies.
    """

    node: Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: list[torch.Tensor]

    def insert(
        self, graph: Graph, node_of: Callable[[int], Node], keep: Callable[..., Node]
    ) -> None:
        """Add the read and its guards to a graph.

        Args:
            node_of: maps the id of a copy to its node in `graph`.
            keep: returns the node of a member of the old graph.
        """
        args, kwargs = _copied((self.args, self.kwargs), lambda copy: node_of(id(copy)))
        read = graph.create_node(self.node.op, self.node.target, args, kwargs)
        made = [read]
        for guard in self.node.users:
            expected, *rest = guard.args[1:]
            made.append(graph.call_function(expect_answer, (read, keep(expected), *rest)))
        for node in made:
            node.meta |= {k: v for k, v in self.node.meta.items() if k != "val"}


_UNTAGGED = frozenset(("_nested_tensor_from_mask_left_aligned",))
"""Operators that read elements although PyTorch's tags do not say so; FakeTensors run them."""


NUMBERS = frozenset(("item", "__int__", "__float__", "__index__"))
"""Methods that read a number, with which a graph of calls may compute."""


def name_of_target(target: object) -> str:
    """Returns the name of the function or the method that a node calls."""
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def reads_elements(node: Node) -> bool:
    """Returns True if a node is a guard that reads a tensor's values."""
    name = name_of_target(node.target)
    reads = node.op.startswith("call") and (name in HOST or name in _UNTAGGED)
    return reads and any(user.target is expect_answer for user in node.users)


def is_guard(node: Node) -> bool:
    """Returns True if only guards use the result of a node."""
    calls = node.op in ("call_method", "call_function")
    return calls and bool(node.users) and all(u.target is expect_answer for u in node.users)


def read_of(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GuardedRead | None:
    """Returns the read that a node performs, given its arguments;
    None if a graph cannot contain it.
    """
    copies: list[torch.Tensor] = []

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        copies.append(torch.clone(tensor))
        return copies[-1]

    try:
        args, kwargs = _copied((args, kwargs), copied)
    except TypeError:
        return None
    return GuardedRead(node, args, kwargs, copies)


def _copied(value: Any, tensor: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return tensor(value)
    if type(value) in (tuple, list):
        return type(value)(_copied(part, tensor) for part in value)
    if type(value) is dict:
        return {key: _copied(part, tensor) for key, part in value.items()}
    if value is None or isinstance(value, base_types):
        return value
    raise TypeError(type(value))
