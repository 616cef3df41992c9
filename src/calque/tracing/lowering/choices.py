"""Finds branches that return an operand unchanged, whereas `torch.cond` returns a copy."""

from collections.abc import Iterator
from typing import Any

from torch.fx.graph import Graph
from torch.fx.node import Node

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.graph.branching import Branch, cond
from calque.tracing.lowering.bindings import resolve
from calque.tracing.lowering.unseen_writes import is_view, name_of, written_by

Memory = Node | str | tuple[Node, int]
"""The node that creates it, the name of a member, or a choice and the index of its result."""


def refuse_writes_to_choices(graph: Graph) -> None:
    """Raise if the program writes to an operand that a branch returned, or to the result, and uses
    the other afterwards.

    Raises:
        TraceError: names the write and its line.
    """
    shared: dict[Memory, set[Memory]] = {}
    choices: dict[Memory, Node] = {}
    last_use = {_memory(used): node for node in graph.nodes for used in node.all_input_nodes}
    order = {node: index for index, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        for memory in map(_memory, written_by(node)):
            for other in _reached(memory, shared) - {memory}:
                is_used = other in last_use and order[last_use[other]] > order[node]
                if is_used or (isinstance(memory, tuple) and _is_outside(other)):
                    _refuse(node, choices[memory])
        inside = _member(node) if node.op == "get_attr" else None
        if isinstance(inside, Branch):
            refuse_writes_to_choices(inside.graph)
        for one, other in _shared(node) if node.target is cond else ():
            for here, there in ((one, other), (other, one)):
                shared.setdefault(here, set()).add(there)
                choices[here] = node


def _reached(memory: Memory, shared: dict[Memory, set[Memory]]) -> set[Memory]:
    found, left = {memory}, [memory]
    while left:
        new = shared.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def _is_outside(memory: Memory) -> bool:
    """Returns True for memory that the caller can access."""
    return isinstance(memory, str) or (isinstance(memory, Node) and memory.op == "placeholder")


def _shared(choice: Node) -> Iterator[tuple[Memory, Memory]]:
    """Returns the memory that a result shares with an operand or another result, unless results are
    copied.
    """
    for branch in choice.args[1:3]:
        results = _results(branch)
        for index, memory in enumerate(results):
            for outside in _outside(choice, memory):
                yield (choice, index), outside
            for other in range(index):
                if memory is not None and results[other] == memory:
                    yield (choice, index), (choice, other)


def _results(branch: Any) -> list[Memory | None]:
    """Returns the memory of each result of a branch."""
    given: Any = _member(branch).graph.output_node().args[0]
    return [_memory(part) if isinstance(part, Node) else None for part in given]


def _outside(choice: Node, memory: Memory | None) -> Iterator[Memory]:
    """Returns the memory of operands that a branch returns, given the memory of a result."""
    operands: Any = choice.args[3]
    if isinstance(memory, str):
        yield memory
    elif isinstance(memory, tuple):  # the result of a choice inside the branch
        for branch in memory[0].args[1:3]:
            for inner in _outside(memory[0], _results(branch)[memory[1]]):
                yield from _outside(choice, inner)
    elif memory is not None and memory.op == "placeholder":
        operand = operands[memory.graph.find_nodes(op="placeholder").index(memory)]
        if isinstance(operand, Node):
            yield _memory(operand)


def _memory(node: Node) -> Memory:
    """Returns the memory that a node may refer to."""
    source = node.args[0] if node.op.startswith("call") and node.args else None
    if node.op == "get_attr":
        return str(node.target)
    if isinstance(source, Node) and node.op != "call_module" and node.target is not cond:
        if source.target is cond and isinstance(node.args[1], int):
            return source, node.args[1]
        if source in written_by(node) or is_view(node):
            return _memory(source)
    return node


def _member(node: Any) -> Any:
    return resolve(node.graph.owning_module, str(node.target))


def _refuse(write: Node, choice: Node) -> None:
    write_at, choice_at = (node.meta.get("origin", "a line") for node in (write, choice))
    raise SymbolicTraceError(
        f"{write_at}: {name_of(write)} writes to a tensor that one branch at {choice_at} returns "
        "unchanged, but torch.cond returns a copy.\n"
        "Return the new tensor instead, or use the graph as it is, without lowering."
    )
