"""Decides whether nodes of two graphs apply the same function to the same arguments, as far as the
graphs show.
"""

import inspect
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.comparing.naming import (
    called,
    flat,
    is_number,
    is_part,
    is_read,
    nodes_in,
    result_of,
    writes,
)
from calque.tracing.graph.templates import rebuilt
from calque.tracing.graph.value_guards import RETURNED
from calque.upstream.torch_internals import OpOverload


def same_results(a: GraphModule, b: GraphModule, twins: dict[Node, Node]) -> bool:
    """Returns True if two graphs return values that may be equal, in equal containers."""
    first, second = result_of(a), result_of(b)
    if any(part.target is rebuilt for part in (*nodes_in(first), *nodes_in(second))):
        first, second = [*flat(first)], [*flat(second)]  # an object in one of them
    return _same(first, second, twins)


def same_arguments(a: Node, b: Node, twins: dict[Node, Node]) -> bool:
    """Returns True if two nodes that call the same get the same arguments, as far as is known.

    Args:
        twins: which node of the second graph stands for one of the first.
    """
    given, other = _arguments(a), _arguments(b)
    if given is None or other is None or given.keys() != other.keys():
        return True  # two ways to write the arguments; their values are compared
    return all(_same(given[name], other[name], twins) for name in given)


def _arguments(node: Node) -> dict[str, Any] | None:
    if node.op == "call_function" and not isinstance(node.target, OpOverload):
        try:
            bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            pass
        else:
            bound.apply_defaults()
            return dict(bound.arguments)
    return {**{str(i): part for i, part in enumerate(node.args)}, **node.kwargs}


def same_values(a: Node, b: Node, twins: dict[Node, Node]) -> bool:
    """Returns True if two nodes may compute the same value, as far as their graphs show.

    >>> first, second = torch.fx.Graph(), torch.fx.Graph()
    >>> x, y = first.placeholder("x"), second.placeholder("y")
    >>> same_values(x, y, {}), same_values(x, second.placeholder("x"), {})
    (True, True)
    """
    first, second = [*_of_tensor(a)], [*_of_tensor(b)]
    known = [twins[node] for node in first if node in twins]
    if any(each in second for twin in known for each in _of_tensor(twin)):
        return True
    a, b = first[-1], second[-1]
    if a.op == b.op == "placeholder":
        return _same_inputs(a, b)
    if a.op == b.op == "get_attr":
        return str(a.target) == str(b.target) or _alike(_member(a), _member(b))
    if known:
        return False
    return a.op.startswith("call") or not any(twin is b for twin in twins.values())


def _of_tensor(node: Node | None) -> Iterator[Node]:
    """Yields a node and the earlier ones that gave the same tensor: it writes to theirs and returns
    it, or a recording has seen that it returns what it is passed.
    """
    while node is not None:
        yield node
        before = node.meta.get(RETURNED)
        node = _earlier(node, before) if before is not None else _written(node)


def _written(node: Node) -> Node | None:
    """Returns the node that made the tensor that a node writes to and returns."""
    if writes(node) and called(node) not in ("setitem", "delitem"):
        source = node.kwargs.get("out", node.args[0] if node.args else None)
        return source if isinstance(source, Node) else None
    owner = node.args[0] if is_part(node) and node.target is operator.getitem else None
    if isinstance(owner, Node) and writes(owner) and isinstance(owner.args[0], (list, tuple)):
        return owner.args[0][node.args[1]]  # pyright: ignore[reportArgumentType, reportCallIssue, reportReturnType]
    return None


def _earlier(node: Node, name: str) -> Node | None:
    """Returns the node of a name that comes before another; None if there is none."""
    each = node.prev
    while each.name != name:
        if each.op == "root":
            return None
        each = each.prev
    return each


def _same_inputs(a: Node, b: Node) -> bool:
    """Returns True if two inputs have the same name or, in graphs with equally many,
    the same position.
    """
    first, second = ([*node.graph.find_nodes(op="placeholder")] for node in (a, b))
    names = [[str(node.target).strip("*_") for node in nodes] for nodes in (first, second)]
    if {*names[0]} == {*names[1]}:
        return str(a.target).strip("*_") == str(b.target).strip("*_")
    return len(first) != len(second) or first.index(a) == second.index(b)


def _member(node: Node) -> Any:
    value: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        value = getattr(value, part, None)
    return value


def _alike(a: Any, b: Any) -> bool:
    """Returns True if two members may be the same despite their names: tracers name constants."""
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return type(a) is type(b)
    if a is b:
        return True
    there = a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
    return there and not a.is_meta and torch.equal(a, b)


def _same(a: Any, b: Any, twins: dict[Node, Node]) -> bool:
    if isinstance(a, Node) and isinstance(b, Node):
        return same_values(a, b, twins)
    if isinstance(a, Node) or isinstance(b, Node):
        node = a if isinstance(a, Node) else b
        return is_number(node) or is_read(node)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key], twins) for key in a)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(_same(x, y, twins) for x, y in zip(a, b))
    if isinstance(a, slice) and isinstance(b, slice):
        parts = (a.start, a.stop, a.step), (b.start, b.stop, b.step)
        return _same(*parts, twins)
    if isinstance(a, float) and isinstance(b, float) and a != a:
        return b != b
    if isinstance(a, torch.device) and isinstance(b, torch.device):
        return True  # where a graph runs is no part of its structure
    return type(a) is type(b) and bool(a == b)
