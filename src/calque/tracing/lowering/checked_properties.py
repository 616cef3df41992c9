"""Properties of inputs that a program reads, which a lowered graph must check too."""

import operator
from typing import Any

from torch.fx.graph import Graph
from torch.fx.node import Node

from calque.tracing.graph import checks
from calque.tracing.graph.value_guards import AUTOGRAD, expect_answer
from calque.tracing.lowering import explained
from calque.tracing.lowering.bindings import resolve
from calque.tracing.lowering.unseen_writes import name_of

_KEPT = frozenset(("stride", "storage_offset", "requires_grad"))
"""Aspects that are checked only if the program reads them; shapes and dtypes are always checked."""


def properties_of_inputs(graph: Graph) -> dict[str, dict[str, Any]]:
    """Returns the properties of inputs that the program read, by name,
    other than shapes and dtypes.
    """
    asked: dict[str, dict[str, Any]] = {}
    for check in graph.find_nodes(op="call_function", target=checks.expect_tensor):
        name, looks = _input_name(check.args[0]), check.args[2]
        if name is not None:
            found = {what: looks[what] for what in looks if what in _KEPT}
            asked.setdefault(name, {}).update(found)
    for guard in graph.find_nodes(op="call_function", target=expect_answer):
        read: Any = guard.args[0]
        name = _input_name(read.args[0]) if guard.args[2] == "requires_grad" else None
        if name is not None:
            answer = resolve(graph.owning_module, guard.args[1].target).value
            asked.setdefault(name, {})["requires_grad"] = answer
    return asked


def asks_of_gradients(graph: Graph) -> bool:
    """Returns True if the program reads whether a tensor has a gradient, which operators cannot."""
    guards = graph.find_nodes(op="call_function", target=expect_answer)
    given = graph.find_nodes(op="call_function", target=checks.expect_tensor)
    reads = graph.find_nodes(op="call_function", target=getattr)
    return (
        any(guard.args[2] in AUTOGRAD for guard in guards)
        or any(not AUTOGRAD.isdisjoint(check.args[2]) for check in given)
        or any(read.args[1] in AUTOGRAD for read in reads)
    )


def is_unknown(question: str) -> bool:
    """Returns True for a question that operators cannot ask, about autograd.

    Raises:
        TraceError: it is about the writes of a run, which a graph of operators has not.
    """
    if question == "_version":
        raise explained.counts_writes()
    return question in AUTOGRAD


_BY_STRIDES = frozenset(("contiguous", "reshape", "reshape_as", "flatten", "ravel"))


def copies_by_strides(graph: Graph) -> bool:
    """Returns True if strides decide whether results of the graph are copies or views.

    The difference matters because a write to a view changes its source.
    """
    calls = (node for node in graph.nodes if node.op in ("call_method", "call_function"))
    return any(name_of(node).strip("_") in _BY_STRIDES for node in calls)


def _input_name(node: object) -> str | None:
    """Returns the name of an input, or of a part of one, in checks; None for computed values."""
    if not isinstance(node, Node):
        return None
    if node.op == "placeholder":
        return str(node.target)
    if node.target not in (operator.getitem, getattr):
        return None
    owner = _input_name(node.args[0])
    if owner is None:
        return None
    key = node.args[1]
    return f"{owner}[{key!r}]" if node.target is operator.getitem else f"{owner}.{key}"
