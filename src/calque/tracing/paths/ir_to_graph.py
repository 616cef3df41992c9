"""Turns steps into a graph: each choice becomes two graph modules and a call of `cond`."""

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.graph import Graph
from torch.fx.node import Node, map_aggregate

from calque.tracing.graph.branching import Branch, cond
from calque.tracing.graph.effects import step_has_effect
from calque.tracing.graph.ir import Choice, Step, StepBlock, StepValue, values_in
from calque.tracing.graph.purity import TracedGraph

Nodes = dict[StepValue, Node]


class Emitter:
    """Writes steps into graphs.

    Args:
        tracer: keeps the graph modules of the branches, and resolves names.
    """

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer
        self._count = 0

    def emit(self, block: StepBlock, graph: Graph, nodes: Nodes) -> None:
        """Append the steps of a block to a graph.

        Args:
            nodes: the nodes of earlier values; those of the block are added.
        """
        for step in block.steps:
            if isinstance(step, Choice):
                self._choice(step, graph, nodes)
            elif step not in nodes:
                nodes[step] = self._node(step, graph, nodes)

    def _node(self, step: Step, graph: Graph, nodes: Nodes) -> Node:
        args, kwargs = (_with_nodes(a, nodes) for a in (step.args, step.kwargs))
        if step.node is None:
            node = graph.create_node(step.op, step.target, args, kwargs)
            _mark(node, step.origin)
            return node
        source = step.node
        node = graph.create_node(
            step.op, step.target, args, kwargs, name=source.name, type_expr=source.type
        )
        node.meta = dict(source.meta)
        return node

    def _choice(self, choice: Choice, graph: Graph, nodes: Nodes) -> None:
        self._read_attributes(choice, graph, nodes)
        operands = list(dict.fromkeys(nodes[v] for v in _used(choice) if v in nodes))
        number = self._fresh_number()
        branches = []
        for name, block in (("true_graph", choice.true), ("false_graph", choice.false)):
            target = f"{name}_{number}"
            self._tracer.keep(target, self._branch(block, operands, nodes))
            branches.append(graph.create_node("get_attr", target, (), {}))
        call = graph.call_function(cond, (nodes[choice.condition], *branches, operands))
        vals = tuple(result.val for result in choice.results)
        if all(val is not None for val in vals):
            call.meta["val"] = vals
        for node in (*branches, call):
            _mark(node, choice.origin)
        for i, result in enumerate(choice.results):
            part = graph.call_function(operator.getitem, (call, i))
            if result.val is not None:
                part.meta["val"] = result.val
            _mark(part, result.origin)
            nodes[result] = part

    def _fresh_number(self) -> int:
        self._count += 1
        while hasattr(self._tracer.root, f"true_graph_{self._count - 1}"):
            self._count += 1
        return self._count - 1

    def _read_attributes(self, choice: Choice, graph: Graph, nodes: Nodes) -> None:
        """Read tensors of modules before a choice, so that they are operands of its blocks."""
        read = {step.target: step for step in nodes if isinstance(step, Step) and _is_read(step)}
        for step in _attributes(choice):
            if step in nodes or not isinstance(self._tracer.resolve(step.target), torch.Tensor):
                continue
            first = read.setdefault(step.target, step)
            if first is step:
                nodes[step] = self._node(step, graph, nodes)
            else:
                nodes[step] = nodes[first]

    def _branch(self, block: StepBlock, operands: list[Node], outer: Nodes) -> Branch:
        graph = TracedGraph(tracer_cls=type(self._tracer))
        inner: dict[Node, Node] = {}
        for source in operands:
            node = inner[source] = graph.placeholder(source.name)
            known = ("val", "origin", "stack_trace", "nn_module_stack")
            node.meta = {key: source.meta[key] for key in known if key in source.meta}
        nodes = {value: inner[node] for value, node in outer.items() if node in inner}
        self.emit(block, graph, nodes)
        graph.output(tuple(nodes[value] for value in block.results))
        return Branch.of(graph, self._tracer.resolve)


def pruned(block: StepBlock, used: set[StepValue], resolve: object) -> StepBlock:
    """Returns the steps without unused optional ones.

    Args:
        used: the values that later steps use; the values that the block uses are added.
    """
    used.update(block.results)
    steps: list[Step | Choice] = []
    for step in reversed(block.steps):
        if isinstance(step, Choice):
            step.true = pruned(step.true, used, resolve)
            step.false = pruned(step.false, used, resolve)
            used.add(step.condition)
        elif step.optional and step not in used and not step_has_effect(step, resolve):
            continue
        else:
            used.update(values_in((step.args, step.kwargs)))
        steps.append(step)
    return StepBlock(steps[::-1], block.results)


def _with_nodes(argument: Any, nodes: Nodes) -> Any:
    return map_aggregate(argument, lambda a: nodes[a] if isinstance(a, StepValue) else a)


def _mark(node: Node, origin: Any) -> None:
    if origin is not None:
        node.meta["origin"] = origin
        node.meta["stack_trace"] = f'File "{origin.file}", line {origin.line}, in {origin.function}'


def _is_read(step: Step) -> bool:
    return step.op == "get_attr"


def _attributes(choice: Choice) -> Iterator[Step]:
    """Yields the attributes that the blocks of a choice read."""
    for step in (*choice.true.steps, *choice.false.steps):
        if isinstance(step, Choice):
            yield from _attributes(step)
        elif _is_read(step):
            yield step


def _used(choice: Choice) -> Iterator[StepValue]:
    """Yields the values that the blocks of a choice use."""
    for block in (choice.true, choice.false):
        for step in block.steps:
            if isinstance(step, Choice):
                yield step.condition
                yield from _used(step)
            else:
                if _is_read(step):
                    yield step
                yield from values_in((step.args, step.kwargs))
        yield from block.results
