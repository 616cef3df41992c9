"""Leaves of autograd that a program makes: `x.detach().requires_grad_()`.

In a graph of operators each is an `aten.requires_grad_` of a detached tensor, so that a gradient
reaches the leaf, as in the program.
"""

from typing import Any

import torch
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.tracing.lowering import explained
from calque.tracing.lowering.bindings import leaves_of, mapped
from calque.tracing.lowering.inner_gradients import require_gradient
from calque.tracing.lowering.unseen_writes import name_of
from calque.upstream.torch_internals import functionalize_mutation_counter, is_functional_tensor

MARK = torch.ops.aten.requires_grad_.default


HAD_GRADIENT = "calque.had_gradient"
"""In the `meta` of a recorded call that marks a tensor: the tensor had a gradient before."""


def marks(node: Node | None) -> bool:
    """Returns True if a call has a tensor that it is passed require a gradient."""
    if node is None or not node.args:
        return False
    return is_marking(node.target, node.args[1:], node.kwargs)


def is_marking(target: object, rest: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Returns True if a function with these arguments has its first one require a gradient."""
    if target in ("requires_grad_", torch.Tensor.requires_grad_):
        return False not in (*rest, *named.values())
    return target is setattr and rest == ("requires_grad", True)


class OwnLeaves:
    """The leaves that a program has made so far.

    Attributes:
        trained: the `id` of each member of the graph that requires a gradient.
        expected: the indices of inputs and members that the program marks, but that required a
            gradient before.
    """

    def __init__(self) -> None:
        self.trained: set[int] = set()
        self.expected: set[int] = set()
        self._made: list[tuple[torch.Tensor, int]] = []

    def marked(self, node: Node, run: Any) -> torch.Tensor:
        """Has a tensor require a gradient, under all its names, and returns it.

        Args:
            node: the call.
            run: the interpreter; it has recorded an `aten.detach` for each leaf.

        Raises:
            TraceError: the tensor is not the program's own, and the program has written to it.
        """
        source: Any = node.args[0]
        tensor = run.env[source]
        places = {index for index, leaf in enumerate(run.leaves) if leaf is tensor}
        is_new = id(tensor) not in self.trained
        is_new &= not any(tensor is leaf for leaf, _ in self._made)
        if run.is_differentiable and not (is_new and _makes_leaf(node)):
            self.expected.update(places)
        if run.is_differentiable and is_new and _makes_leaf(node):
            if not places.isdisjoint((*run.writers, *range(run.count_of_members))):
                raise explained.marks_argument(source)
            tensor = self._replaced(tensor, run)
        run.recorded.claim(node)
        return tensor

    def _replaced(self, tensor: torch.Tensor, run: Any) -> torch.Tensor:
        """Replace a tensor by a leaf, under all its names and in all containers."""
        made = self.created(tensor)

        def replace(part: torch.Tensor) -> torch.Tensor:
            return made if part is tensor else part

        for each, value in run.env.items():
            if any(part is tensor for part in leaves_of(value)):
                run.env[each] = mapped(value, replace)
        return made

    def created(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a leaf with the memory of a tensor."""
        made = tensor.detach()
        require_gradient(made)
        self._made.append((made, times_written(made)))
        return made

    def refuse_write(self, node: Node) -> None:
        """Raise if a call has written to one of the leaves."""
        if any(times_written(leaf) != count for leaf, count in self._made):
            raise explained.writes_to_leaf(name_of(node))


def times_written(tensor: torch.Tensor) -> int:
    """Returns how often a tensor was written to, counted from an arbitrary start."""
    if is_functional_tensor(tensor):
        return functionalize_mutation_counter(tensor)
    return tensor._version


def _makes_leaf(node: Node) -> bool:
    """Returns True if a call that marks a tensor makes it a leaf; False if it had a gradient."""
    source: Any = node.args[0]
    before = source.meta.get("val")
    if node.meta.get(HAD_GRADIENT) or not isinstance(before, torch.Tensor):
        return False
    return before.is_leaf  # in a trace, it already requires a gradient, because it was marked


def creates(node: Node | None) -> bool:
    """Returns True if the result of a call is a leaf that requires a gradient."""
    if node is None or node.op not in ("call_function", "call_method"):
        return False
    asked = node.kwargs.get("requires_grad", node.target is torch.nn.Parameter)
    return asked is True and (node.target is not torch.nn.Parameter or False not in node.args[1:])


def is_mark(node: Node, source: Node | None) -> bool:
    """Returns True for the operator that `lower` records where the program makes a leaf."""
    return node.target is torch.ops.aten.detach.default and (marks(source) or creates(source))


def without_marks(graph: GraphModule) -> GraphModule:
    """Removes the marks from a new graph of operators, whose gradient is not needed."""
    for node in graph.graph.find_nodes(op="call_function", target=MARK):
        node.replace_all_uses_with(node.args[0])
        graph.graph.erase_node(node)
    graph.recompile()
    return graph
