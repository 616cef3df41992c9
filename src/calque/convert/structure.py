"""Finds the nodes of a graph that need no conversion: checks, block markers, containers of results.

Such a node runs no operator and returns no new tensor. Reads of values are not among them, because
the graph depends on the values.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.errors.handlers import is_of_handler
from calque.tracing.graph.checks import CHECKS
from calque.tracing.graph.modes import BEGINNINGS, ENDS
from calque.tracing.graph.purity import has_effect
from calque.tracing.graph.templates import made_by, rebuilt, with_attributes
from calque.tracing.graph.value_guards import OF_RECORDINGS
from calque.tracing.lowering.single_calls import lower_singly
from calque.upstream import torch_c
from calque.upstream.torch_internals import OpOverload, pytree

GUARDS: frozenset[Any] = CHECKS | OF_RECORDINGS
_EXPORTED_GUARDS = "_guards_fn"
_MARKS = frozenset((*BEGINNINGS, *ENDS))
_MAKERS = (rebuilt, made_by, with_attributes)


def is_guard(node: Node) -> bool:
    """Returns True if a node only checks an assumption of its tracer."""
    return node.target in GUARDS or str(node.target) == _EXPORTED_GUARDS


def makes_container(node: Node) -> bool:
    """Returns True if a node puts values into a container or an object."""
    target: Any = node.target
    is_class = isinstance(target, type) and not issubclass(target, torch.Tensor)
    return node.op == "call_function" and (is_class or target in _MAKERS)


def container_of(node: Node, plain: Callable[[Any], Any], member: Callable[[str], Any]) -> Any:
    """Returns the container that a node creates, with its arguments converted by `plain`.

    A class that takes only tensors is represented by the dict or tuple of its arguments.
    """
    target: Any = node.target
    first, *rest = (plain(part) for part in node.args) if node.args else (None,)
    named = {key: plain(part) for key, part in node.kwargs.items()}
    if target is rebuilt:
        first = member(str(node.args[0].target))  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    try:
        return target(*((first, *rest) if node.args else ()), **named)
    except Exception as error:  # the class may use the tensors in any way
        if is_of_handler(error):
            raise
        if target is with_attributes:
            return rest[0]
        return named or tuple(rest if target in _MAKERS else (first, *rest))


def given_by(argument: object) -> list[Node]:
    """Returns the nodes of the tensors in a result, however deeply nested, in order."""
    found: list[Node] = []
    for leaf in pytree.tree_leaves(argument):
        if isinstance(leaf, Node) and makes_container(leaf):
            found += given_by((leaf.args, leaf.kwargs))
        elif isinstance(leaf, Node):
            found.append(leaf)
    return found


def needless(graph: GraphModule, is_claimed: Callable[[Node], bool]) -> set[Node]:
    """Returns the nodes of a graph that need no conversion.

    Args:
        is_claimed: returns True if a node has a converter anyway.
    """
    nodes = [n for n in graph.graph.nodes if n.op in ("call_function", "call_method")]
    nodes = [n for n in nodes if not is_claimed(n)]
    found = {n for n in nodes if is_label(n) or (_asks(n) and _runs_nothing(n, graph))}
    for begin in [n for n in graph.graph.nodes if n.target in BEGINNINGS]:
        ends = [user for user in begin.users if user.target in ENDS]
        block = _through(begin, max(ends)) if ends else []
        if all(n in found or _knows_no_mode(n) for n in block):
            found.update(n for n in block if n.target in _MARKS and n in nodes)
    return found


def is_label(node: Node) -> bool:
    """Returns True if a node begins or ends a profiler block."""
    name = getattr(node.target, "_qualified_op_name", None)
    name = name or (node.target.name() if isinstance(node.target, OpOverload) else "")
    return str(name).startswith("profiler::")


def _asks(node: Node) -> bool:
    """Returns True if a node may return something other than a tensor, and has no effect."""
    leaves = pytree.tree_leaves(node.meta.get("val"))
    gives = any(isinstance(leaf, torch.Tensor) for leaf in leaves)
    is_mark = node.target in _MARKS and node.target is not torch_c.is_grad_enabled
    is_mark |= any(user.target in ENDS for user in node.users)
    return not (gives or has_effect(node) or is_mark or makes_container(node))


def _runs_nothing(node: Node, graph: GraphModule) -> bool:
    lowered = lower_singly(node, graph)
    if lowered.graph is None or lowered.operators:
        return False
    result = lowered.graph.graph.output_node().args[0]
    return not any(isinstance(leaf, Node) for leaf in pytree.tree_leaves(result))


def _through(begin: Node, end: Node) -> list[Node]:
    """Returns the nodes from one to another."""
    found = [begin]
    while found[-1] is not end:
        found.append(found[-1].next)
    return found


def _knows_no_mode(node: Node) -> bool:
    """Returns True if a node does not depend on gradient mode or autocast."""
    if not node.op.startswith("call") or node.target in GUARDS | _MARKS or makes_container(node):
        return True
    return isinstance(node.target, OpOverload) or node.target is operator.getitem
