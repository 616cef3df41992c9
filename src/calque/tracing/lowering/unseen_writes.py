"""Refuses writes that autograd does not see, to tensors whose gradients it computes.

`x.data.mul_(2)`, and any write to `x` within `torch.no_grad`, change the values of `x` but not its
gradient. Operators cannot express that: a write returns a new value with its own gradient.
"""

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.graph import Graph
from torch.fx.node import Node

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.graph.checks import CHECKS
from calque.tracing.graph.effects import may_return_view
from calque.tracing.graph.purity import has_effect
from calque.tracing.graph.value_guards import OF_RECORDINGS
from calque.upstream import torch_c

_APART = ("data", "detach", "detach_")


def refuse_unseen_writes(graph: Graph, has_gradient: Callable[[Node], bool] | None = None) -> None:
    """Raise if a tensor is used after a write that autograd has not seen.

    Args:
        has_gradient: returns True if a node's value has a gradient; by default, as in the example.

    Raises:
        TraceError: names the write and its line.
    """
    has_gradient = has_gradient or _has_gradient
    roots: dict[Node, Node] = {}
    apart: set[Node] = set()  # detached nodes that share memory with tensors that have gradients
    unseen: dict[Node, Node] = {}
    listed: dict[Node, list[Node]] = {}  # the nodes of a list's tensors
    members: dict[Any, Node] = {}  # the first node of each member of the module
    enabled: Any = True
    for node in graph.nodes:
        if node.target is torch_c.set_grad_enabled:
            enabled = node.args[0] is not False
            continue
        if node.op == "get_attr" and members.setdefault(node.target, node) is not node:
            roots[node] = members[node.target]
        used = [n for n in node.all_input_nodes if roots.get(n, n) in unseen]
        writes = written_by(node)
        for source in used if enabled else ():
            write = unseen[roots.get(source, source)]
            is_graded = has_gradient(source) or write.target is setattr
            if is_graded and source not in apart and source not in writes:
                _refuse(write, node)
        owner: Any = node.args[0] if node.args else None
        if node.target is operator.getitem and owner in listed:
            owner = listed[owner][node.args[1]]  # pyright: ignore[reportArgumentType]
        owner = node.kwargs.get("out", owner)
        if isinstance(owner, (list, tuple)) and writes:
            listed[node] = writes
        elif isinstance(owner, Node) and (owner in writes or is_view(node)):
            roots[node] = roots.get(owner, owner)
            if owner in apart or node.target is copy.copy or name_of(node) in _APART:
                apart.add(node)
        for written in writes:
            if enabled and written not in apart and node.target is not setattr:
                continue
            root = roots.get(written, written)
            group = [root, *(member for member, first in roots.items() if first is root)]
            if node.target is setattr:  # `x.requires_grad = False`
                group = [*group, *root.all_input_nodes]
            if any(has_gradient(member) for member in group if member not in apart):
                unseen.setdefault(root, node)


def loses_gradients(graph: Graph) -> bool:
    """Returns True if there would be such a write if all inputs had gradients."""
    reached: set[Node] = set()
    enabled: Any = True
    for node in graph.nodes:
        if node.target is torch_c.set_grad_enabled:
            enabled = node.args[0] is not False
        if node.op == "placeholder":
            reached.add(node)
        elif enabled and name_of(node) not in _APART:
            if not reached.isdisjoint(node.all_input_nodes) and _is_differentiable(node):
                reached.update((node, *written_by(node)))
        elif not enabled and not reached.isdisjoint(written_by(node)):
            reached.add(node)
    try:
        refuse_unseen_writes(graph, lambda node: node in reached or _has_gradient(node))
    except SymbolicTraceError:
        return True
    return False


def written_by(node: Node) -> list[Node]:
    """Returns the nodes whose values a node writes to, including those in lists."""
    computes = node.op.startswith("call") and node.op != "call_module"
    if not computes or node.target in _NO_WRITES or name_of(node) in OF_AUTOGRAD:
        return []
    if not has_effect(node, writes=True) or (
        node.target is setattr and not _changes_tensor(*node.args[1:])
    ):
        return []
    target: Any = node.kwargs.get("out", node.args[0] if node.args else None)
    parts = target if isinstance(target, (tuple, list)) else (target,)
    return [part for part in parts if isinstance(part, Node) and _is_tensor(part)]


OF_AUTOGRAD = frozenset(("requires_grad_", "backward", "retain_grad", "register_hook"))
"""Methods that change a tensor's autograd metadata, and none of its elements."""
_NO_WRITES = CHECKS | OF_RECORDINGS


def _changes_tensor(name: Any, value: Any) -> bool:
    """Returns True if setting an attribute changes a tensor, unlike those of the program's own.

    `x.requires_grad = True` is `x.requires_grad_()`, which `OwnLeaves` handles.
    """
    return name in ("data", "grad") or (name == "requires_grad" and value is not True)


def takes_gradient(node: Node | None) -> bool:
    """Returns True if, as far as is known, an argument of the node has a gradient."""
    return node is not None and any(map(_has_gradient, node.all_input_nodes))


def is_view(node: Node) -> bool:
    """Returns True if the result of a node may share memory with its first argument."""
    if node.op == "call_method":
        return may_return_view(str(node.target))
    if node.op != "call_function":
        return False
    return node.target in (getattr, copy.copy) or may_return_view(name_of(node).strip("_"))


def name_of(node: Node) -> str:
    """Returns the name of the function, method or attribute of a node."""
    if node.target is getattr:
        return str(node.args[1])
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _is_tensor(node: Node) -> bool:
    return isinstance(_val(node), (torch.Tensor, tuple, list))


_UNKNOWN: torch.Tensor = torch.empty(0, requires_grad=True, device="cpu")
"""Stands for an unknown value."""


def _val(node: Node) -> Any:
    return node.meta.get("val", 0 if node.op == "get_attr" else _UNKNOWN)


def _has_gradient(node: Node) -> bool:
    value = _val(node)
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(part, torch.Tensor) and part.requires_grad for part in parts)


def _is_differentiable(node: Node) -> bool:
    value = _val(node)
    parts = value if isinstance(value, (tuple, list)) else (value,)
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    return any(part.is_floating_point() or part.is_complex() for part in tensors)


def _refuse(write: Node, use: Node) -> None:
    place = write.meta.get("origin")
    raise SymbolicTraceError(
        f"{f'{place}: ' if place is not None else ''}{name_of(write)} writes to a tensor where "
        "autograd does not see it, and the tensor is used afterwards; the gradient of the "
        "operators would include that write.\nWrite x = x + (new - x).detach(), or lower within "
        "torch.no_grad() if the graph is not differentiated."
    )
