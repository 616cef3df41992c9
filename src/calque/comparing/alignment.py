"""Aligns the nodes of two graphs by what they call, or else by their place in the program.

Two graphs of one tracer have the same nodes. Those of different tracers may not: one calls
`Linear`, another `linear`, and a third `t` and `addmm`. But each node has its line and the call of
its module, so graphs can be cut into stretches that come from one place. The results of a stretch
do not depend on which nodes compute them.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.comparing.matching import common_ends, matched
from calque.comparing.naming import called, nodes_of
from calque.comparing.regions import Stretch, single_calls, stretches
from calque.tracing.core.origins import NodeOrigin, origin_of


class Pair(NamedTuple):
    """Nodes of two graphs that should compute the same values."""

    a: Node
    b: Node


def origin_of_pair(pair: Pair) -> NodeOrigin | None:
    """Returns the line of the program that either node comes from."""
    return origin_of(pair.a) or origin_of(pair.b)


class Unpaired(NamedTuple):
    """Stretches of two graphs that differ in what they call; one of them may be missing."""

    a: Stretch | None
    b: Stretch | None


def aligned(a: GraphModule, b: GraphModule) -> Iterator[Pair | Unpaired]:
    """Yields pairs of corresponding nodes of two graphs, and nodes without a counterpart, in order.

    If a graph has no places, and only one of the two calls layers, nodes inside a layer cannot be
    matched.
    """
    first, second = nodes_of(a), nodes_of(b)
    if [*map(called, first)] == [*map(called, second)]:
        yield from map(Pair, first, second)
        return
    leaves = _leaves(a), _leaves(b)
    has_places = all(any(map(origin_of, nodes)) for nodes in (first, second))
    cut = partial(stretches, leaves=leaves[0] | leaves[1]) if has_places else single_calls
    rows, columns = (
        [stretch for stretch in cut(nodes) if not stretch.is_nothing] for nodes in (first, second)
    )
    is_as_deep = has_places or bool(leaves[0]) == bool(leaves[1])
    for row, column in matched(rows, columns):
        if row is not None and column is not None:
            yield from _within(row, column)
        elif is_as_deep and any(s.calls for s in (row, column) if s is not None):
            yield Unpaired(row, column)


def _within(a: Stretch, b: Stretch) -> Iterator[Pair | Unpaired]:
    """Like `aligned`, for the nodes of one place of the program."""
    if [*map(called, a.nodes)] == [*map(called, b.nodes)]:
        yield from map(Pair, a.nodes, b.nodes)
        return
    if a.is_layer or b.is_layer:
        if _is_other_layer(a, b):
            yield Unpaired(a, b)
        yield from _outputs(a, b)
        return
    head, tail = common_ends(a.nodes, b.nodes)
    ends = [len(side.nodes) - tail for side in (a, b)]
    yield from map(Pair, a.nodes[:head], b.nodes[:head])
    first, second = (Stretch(s.place, s.nodes[head:end]) for s, end in zip((a, b), ends))
    if first.calls != second.calls:
        yield Unpaired(*(part if part.calls else None for part in (first, second)))
    yield from _outputs(first, second)
    yield from map(Pair, a.nodes[ends[0] :], b.nodes[ends[1] :])


def _is_other_layer(a: Stretch, b: Stretch) -> bool:
    """Returns True if both call a layer of the same name, but different layers."""
    kinds = [{n.target: called(n) for n in side.nodes if n.op == "call_module"} for side in (a, b)]
    return any(kinds[0][name] != kinds[1][name] for name in kinds[0].keys() & kinds[1].keys())


def _outputs(a: Stretch, b: Stretch) -> Iterator[Pair]:
    """Yields the outputs of both in pairs. If there are several, only those whose shape and dtype
    are unique are paired, because their order may differ. Yields nothing if a node writes in place.
    """
    left, right = a.leaving, b.leaving
    if a.writes or b.writes:
        return
    if len(left) == len(right) == 1:
        yield Pair(left[0], right[0])
        return
    first, second = ([_looks(node) for node in side] for side in (left, right))
    if sorted(first) == sorted(second):
        for node, looks in zip(left, first):
            if first.count(looks) == 1:
                yield Pair(node, right[second.index(looks)])


def _looks(node: Node) -> str:
    value = node.meta.get("val")
    parts: Sequence[object] = value if isinstance(value, (tuple, list)) else (value,)
    tensors = (part for part in parts if isinstance(part, torch.Tensor))
    return str([(str(tensor.dtype), *map(str, tensor.shape)) for tensor in tensors])


def _leaves(graph: GraphModule) -> set[str]:
    return {str(node.target) for node in graph.graph.find_nodes(op="call_module")}
