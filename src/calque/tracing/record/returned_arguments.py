"""Calls that return the tensor that they were passed itself, as `x.contiguous()` may."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.fx.graph import Graph
from torch.fx.node import Node

from calque.tracing.core.origins import NodeOrigin
from calque.tracing.graph.effects import writes_to_input
from calque.tracing.graph.value_guards import RETURNED, expect_itself
from calque.tracing.lowering.unseen_writes import is_view, name_of, written_by
from calque.upstream.torch_internals import tree_leaves


class ReturnedArgument(NamedTuple):
    """A call that returned its argument.

    Attributes:
        node: the result.
        argument: the node that returned the tensor before.
        origin: where it was called.
    """

    node: Node
    argument: Node
    origin: NodeOrigin | None


class ReturnedArguments:
    """Finds where a graph is correct only if a call returns its argument itself.

    In the run, two names referred to one tensor, and a graph cannot tell which of them a later line
    uses. If the call returns a copy for other inputs, this matters as soon as the program writes to
    the tensor, or returns it twice.

    Args:
        resolve: returns the module that a `call_module` names.
    """

    def __init__(self, resolve: Callable[[str], Any]) -> None:
        self._resolve = resolve
        self._found: list[ReturnedArgument] = []

    def note(self, argument: Node, node: Node, origin: NodeOrigin | None) -> None:
        """Note that a node has returned a tensor that another node returned before."""
        if argument not in written_by(node):
            node.meta[RETURNED] = argument.name
            self._found.append(ReturnedArgument(node, argument, origin))

    def insert_checks(self, graph: Graph, always: bool) -> None:
        """Add a check where it matters.

        Args:
            always: whether to add it everywhere, because the program compares tensors by identity.
        """
        order = {node: i for i, node in enumerate(graph.nodes)} if self._found else {}
        found = [each for each in self._found if each.node in order and each.argument in order]
        roots: dict[Node, Node] = {}
        for each in found:
            _join(roots, each.node, each.argument)
        last: dict[Node, int] = {}
        for node in graph.nodes:
            for source in self._sharing(node):
                _join(roots, node, source)
        for node, i in order.items():
            for written in self._written(node):
                last[_root(roots, written)] = i
        results = tree_leaves(graph.output_node().args)
        for node, argument, origin in found:
            is_written = last.get(_root(roots, node), -1) > order[node]
            if always or is_written or sum(part is node for part in results) > 1:
                with graph.inserting_after(node):
                    given = (node, argument, _what(node), str(origin))
                    check = graph.call_function(expect_itself, given)
                check.meta["origin"] = origin

    def _sharing(self, node: Node) -> list[Node]:
        """Returns the arguments of a node that may share memory with its result."""
        if node.op == "call_module":
            return [source for source in node.all_input_nodes if self._may_be_view(node, source)]
        if node.op.startswith("call") and (is_view(node) or written_by(node)):
            return node.all_input_nodes
        return []

    def _may_be_view(self, node: Node, source: Node) -> bool:
        """Returns True if a layer may return a view of an argument; layers with weights do not."""
        result, given = node.meta.get("val"), source.meta.get("val")
        if not (isinstance(result, torch.Tensor) and isinstance(given, torch.Tensor)):
            return True
        has_weights = any(True for _ in self._resolve(str(node.target)).parameters())
        return not has_weights and result.numel() == given.numel() and result.dtype == given.dtype

    def _written(self, node: Node) -> list[Node]:
        if node.op != "call_module":
            return written_by(node)
        module = self._resolve(str(node.target))
        is_of_torch = type(module).__module__.startswith("torch.nn")
        return node.all_input_nodes if writes_to_input(module) or not is_of_torch else []


def _what(node: Node) -> str:
    """Returns the name of the called function; for a part of a result, of the call that returned
    the whole.
    """
    owner = node.args[0] if name_of(node) == "getitem" else node
    node = owner if isinstance(owner, Node) else node
    return str(node.target) if node.op == "call_module" else name_of(node)


def _join(roots: dict[Node, Node], a: Node, b: Node) -> None:
    first, second = _root(roots, a), _root(roots, b)
    if first is not second:
        roots[first] = second


def _root(roots: dict[Node, Node], node: Node) -> Node:
    while node in roots:
        node = roots[node]
    return node
