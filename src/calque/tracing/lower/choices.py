"""A branch of a choice may return an operand as it is; the operator for a choice returns a copy."""

from collections.abc import Iterator
from typing import Any

from torch.fx.graph import Graph
from torch.fx.node import Node

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.graph.branching import cond
from calque.tracing.lower.bindings import resolve
from calque.tracing.lower.unseen_writes import is_view, name_of, written_by


def refuse_writes_to_choices(graph: Graph) -> None:
    """Raise where the program writes to a tensor that a choice has returned, or to its result.

    Raises:
        TraceError: names the write and its line.
    """
    shared: dict[Node, Node] = {}
    for node in graph.nodes:
        for written in written_by(node):
            choice = shared.get(_root(written))
            if choice is not None:
                _refuse(node, choice)
        given_back = set(_given_back(node)) if node.target is cond else ()
        if given_back:
            shared[node] = node
            shared.update((_root(operand), node) for operand in given_back)


def _given_back(choice: Node) -> Iterator[Node]:
    """The operands whose memory a branch of the choice may return."""
    operands: Any = choice.args[3]
    for name in choice.args[1:3]:
        branch: Any = resolve(choice.graph.owning_module, str(getattr(name, "target", "")))
        inputs = branch.graph.find_nodes(op="placeholder")
        for result in branch.graph.output_node().all_input_nodes:
            root = _root(result)
            found = operands if root.target is cond else _at(root, inputs, operands)
            yield from (operand for operand in found if isinstance(operand, Node))


def _at(root: Node, inputs: list[Node], operands: Any) -> list[Any]:
    return [operand for given, operand in zip(inputs, operands) if given is root]


def _root(node: Node) -> Node:
    """The node whose memory a node may show."""
    source = node.args[0] if node.op.startswith("call") and node.args else None
    if isinstance(source, Node) and node.op != "call_module" and node.target is not cond:
        if source in written_by(node) or is_view(node):
            return _root(source)
    return node


def _refuse(write: Node, choice: Node) -> None:
    write_at, choice_at = (node.meta.get("origin", "a line") for node in (write, choice))
    raise SymbolicTraceError(
        f"{write_at}: {name_of(write)} writes to a tensor that one branch of the choice at "
        f"{choice_at} returns as it is, but the operator for a choice returns a copy.\n"
        "Return the new tensor instead, or use the graph as it is, without lowering."
    )
