"""Removes writes among operators, including those inside PyTorch's own operators.

`torch.func.functionalize` passes composite operators on unchanged, so their writes remain when they
are decomposed below it (`gru_cell` adds in place to its own results). The graph from the first pass
no longer contains such operators, so it can be functionalized.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.fx
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.lowering.bindings import resolve
from calque.tracing.lowering.explained import writes_in_a_branch, writes_to_parameter
from calque.tracing.lowering.recorded_nodes import Place, RecordedNodes
from calque.upstream.torch_internals import OpOverload

COPY = torch.ops.aten.copy_.default
GEOMETRY = torch.ops.aten.as_strided_.default  # which changes no element
_UNSEEN = "calque.unseen"


def copy_unseen(target: torch.Tensor, value: torch.Tensor) -> None:
    """Writes to a tensor without autograd counting it, as some of PyTorch's kernels do.

    If autograd has saved the tensor, the backward pass reads the new values.
    """
    target.copy_(value)
    mode = get_proxy_mode()
    if mode is not None:
        next(iter(reversed(mode.tracer.graph.nodes))).meta[_UNSEEN] = True


def is_unseen(copy: Node) -> bool:
    """Returns True for a copy made by `copy_unseen`."""
    return _UNSEEN in copy.meta


def without_writes(
    found: GraphModule, place: Place, leaves: list[torch.Tensor], table: Mapping[Any, Any]
) -> tuple[GraphModule, Place]:
    """Returns the graph without operators that write, except for final copies to its inputs.

    Args:
        found: the result of `make_fx` for a functionalized program.
        place: the origins of its nodes.
        leaves: example inputs.
        table: the replacements of operators.

    Returns:
        The graph and the origins of its nodes; both unchanged if there is nothing to remove.
    """
    if not any(_writes(node) for node in found.graph.nodes):
        return found, place
    rerun = _Rerun(found)
    run = torch.func.functionalize(rerun.flat, remove="mutations")
    with fx_traceback.preserve_node_meta():
        made = make_fx(run, dict(table), tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves)
    rerun.mark_unseen(made)
    return made, rerun.place_in(made, place)


def _writes(node: Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload) or not target._schema.is_mutable or target is GEOMETRY:
        return False
    first = node.args[0] if node.args else None
    return not (target is COPY and isinstance(first, Node) and first.op == "placeholder")


def refuse_writes_in_branches(found: GraphModule, place: Place) -> None:
    """Raise if a branch or a loop body of operators writes to a tensor from outside it.

    PyTorch takes such a node for one without effects, and drops it if its results are unused.
    """
    for node in found.graph.nodes:
        parts = [arg for arg in node.all_input_nodes if arg.op == "get_attr"]
        branches = [resolve(found, str(part.target)) for part in parts]
        if any(isinstance(one, GraphModule) and _writes_outside(one) for one in branches):
            raise _at(node, writes_in_a_branch(), place)


def refuse_writes_to_parameters(found: GraphModule, graded: Iterable[Node], place: Place) -> None:
    """Raise if an operator writes to a leaf of autograd's graph, as it would when the graph runs.

    Args:
        graded: the inputs of the operators that are such leaves.
    """
    if (write := _first_write(found, set(graded), torch.ops.aten.detach.default)) is not None:
        raise _at(write, writes_to_parameter(), place)


def _at(node: Node, error: SymbolicTraceError, place: Place) -> SymbolicTraceError:
    source = place(node)
    if source is not None and (origin := source.meta.get("origin")) is not None:
        error.add_note(f"while lowering {origin}: {origin.text}")
    return error


def _writes_outside(branch: GraphModule) -> bool:
    inside = [inner for inner in branch.children() if isinstance(inner, GraphModule)]
    if any(map(_writes_outside, inside)):
        return True
    outside = {node for node in branch.graph.nodes if node.op in ("placeholder", "get_attr")}
    return _first_write(branch, outside) is not None


def _first_write(graph: GraphModule, memory: set[Node], apart: object = None) -> Node | None:
    """Returns the first operator that writes to one of these nodes, or to a view of one that was
    not made by the operator `apart`.
    """
    for node in graph.graph.nodes:
        if isinstance(node.target, OpOverload) and memory & _written_by(node, node.target):
            return node
        if node.target is not apart and memory & _viewed_by(node):
            memory.add(node)
    return None


def _viewed_by(node: Node) -> set[Node]:
    """Returns the arguments of a node that its result may be, or view."""
    target = node.target
    if target is operator.getitem:
        return set(node.all_input_nodes)
    if not isinstance(target, OpOverload):
        return set()
    shared = set[str]()
    for result in target._schema.returns:
        shared |= result.alias_info.before_set if result.alias_info is not None else set()
    return _given(node, target, lambda alias: bool(alias.before_set & shared)) if shared else set()


def _written_by(node: Node, target: OpOverload) -> set[Node]:
    return _given(node, target, lambda alias: alias.is_write)


def _given(node: Node, target: OpOverload, chosen: Callable[[Any], bool]) -> set[Node]:
    """Returns the arguments of an operator for the parameters whose annotation is chosen."""
    names = target._schema.arguments
    given = {**{names[i].name: arg for i, arg in enumerate(node.args)}, **node.kwargs}
    chosen_names = [a.name for a in names if a.alias_info is not None and chosen(a.alias_info)]
    return {arg for name in chosen_names for arg in _nodes_in(given.get(name))}


def _nodes_in(value: Any) -> list[Node]:
    items = value if isinstance(value, (list, tuple)) else [value]
    return [item for item in items if isinstance(item, Node)]


class _Rerun(torch.fx.Interpreter):
    """Runs a graph, and tracks for each new node which node was running."""

    def __init__(self, found: GraphModule) -> None:
        super().__init__(found, garbage_collect_values=True)
        self.extra_traceback = False
        self._old: list[Node] = found.graph.find_nodes(op="placeholder")
        self._copies = found.graph.find_nodes(op="call_function", target=COPY)
        self._recorded = RecordedNodes()

    def flat(self, *leaves: torch.Tensor) -> Any:
        """Returns the results in order."""
        return self.run(*leaves, enable_io_processing=False)

    def run_node(self, n: Node) -> Any:
        """Runs a node, and attributes to it the operators that are recorded meanwhile."""
        result = super().run_node(n)
        self._recorded.claim(n)
        return result

    def mark_unseen(self, made: GraphModule) -> None:
        """Mark a final copy to an input as unseen if autograd saw none of the writes that it
        replaces.
        """
        new = made.graph.find_nodes(op="placeholder")
        for copy in made.graph.find_nodes(op="call_function", target=COPY):
            copy.meta.pop(_UNSEEN, None)
            old = self._old[new.index(copy.args[0])] if copy.args[0] in new else None
            if all(map(is_unseen, [each for each in self._copies if each.args[0] is old])):
                copy.meta[_UNSEEN] = True

    def place_in(self, made: GraphModule, place: Place) -> Place:
        """Returns the origin of the new nodes; for a copy to an input,
        that of the last original copy.
        """
        new = made.graph.find_nodes(op="placeholder")
        copies = {copy.args[0]: copy for copy in self._copies}
        last = {leaf: copies[old] for leaf, old in zip(new, self._old) if old in copies}

        def found_at(node: Node) -> Node | None:
            old = self._recorded.source.get(node) or next(
                (last[arg] for arg in node.args if arg in last), None
            )
            return place(old) if old is not None else None

        return found_at
