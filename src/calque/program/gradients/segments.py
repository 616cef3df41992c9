"""Cuts the autograd graph of a traced function at the tensors that outlive the function.

One of these tensors may have been computed from another, such as a loss from logits that are also
returned. Then the loss's gradients must flow through the returned logits as in eager mode, so that
hooks on the logits run and `torch.autograd.grad(loss, logits)` works. So each tensor has its own
segment, which ends at the other tensors and at the boundary. Overlapping segments of independent
tensors are merged.
"""

import logging
from collections.abc import Collection, Iterable
from typing import Any

import torch

from calque.program.gradients.graph_boundary import Edge, is_leaf_node
from calque.state.watched_calls import unwatched

Tensor = torch.Tensor
logger: logging.Logger = logging.getLogger("calque.jit")

MOST = 128
"""The maximum number of tensors with their own segments, because each is a program."""


class Segment:
    """A part of the graph.

    Attributes:
        results: the indexes of the tensors that it computes.
        ends: the edges where it ends, with the results that depend on each.
    """

    def __init__(self, results: set[int], ends: dict[Edge, set[int]]) -> None:
        self.results = results
        self.ends = ends


@unwatched
def segments(tensors: list[Tensor], border: Collection[Edge]) -> list[Segment]:
    """Returns the segments of some tensors within the boundary, in order of dependency."""
    own: dict[Edge, int] = {}
    for index, tensor in enumerate(tensors):
        own.setdefault((tensor.grad_fn, tensor.output_nr), index)
    if len(tensors) > MOST:
        logger.warning(
            "a jitted function returns or keeps %d tensors with gradients: hooks on one do not "
            "see gradients that reach it through another",
            len(tensors),
        )
        starts = enumerate(tensors)
        return [
            Segment(
                set(range(len(tensors))),
                _merged((i, _look(t.grad_fn, {}, border)[1]) for i, t in starts),
            )
        ]
    found = [_look(tensor.grad_fn, own, border) for tensor in tensors]
    groups = _Groups([{own[e] for e in ends if e in own} for _, ends in found])
    seen: dict[Any, int] = {}
    for index, (nodes, _) in enumerate(found):
        for node in nodes:
            groups.join(seen.setdefault(node, index), index)
    return [
        Segment(set(group), _merged((i, found[i][1]) for i in group)) for group in groups.sorted()
    ]


def _look(
    start: Any, own: dict[Edge, int], border: Collection[Edge]
) -> tuple[list[Any], list[Edge]]:
    """Returns the nodes from a start to the next boundary or result, and the edges there."""
    nodes: dict[Any, None] = {}
    ends: dict[Edge, None] = {}
    rest = [start]
    while rest:
        node = rest.pop()
        if node in nodes:
            continue
        nodes[node] = None
        for edge in node.next_functions:
            if edge[0] is None:
                continue
            if edge in own or edge in border or is_leaf_node(edge[0]):
                ends[edge] = None
            else:
                rest.append(edge[0])
    return list(nodes), list(ends)


def _merged(rows: Iterable[tuple[int, list[Edge]]]) -> dict[Edge, set[int]]:
    ends: dict[Edge, set[int]] = {}
    for index, edges in rows:
        for edge in edges:
            ends.setdefault(edge, set()).add(index)
    return ends


class _Groups:
    """Sets of tensors, and their dependencies.

    Args:
        needed: the tensors from which each was computed.
    """

    def __init__(self, needed: list[set[int]]) -> None:
        self._group = list(range(len(needed)))
        self._members = {i: [i] for i in range(len(needed))}
        self._needed = {i: set(one) for i, one in enumerate(needed)}

    def join(self, one: int, other: int) -> None:
        """Merge two groups, unless one depends on the other."""
        a, b = self._group[one], self._group[other]
        if a == b or self._reaches(a, b) or self._reaches(b, a):
            return
        for member in self._members[b]:
            self._group[member] = a
        self._members[a] += self._members.pop(b)
        self._needed[a] |= self._needed.pop(b)

    def _behind(self, group: int) -> set[int]:
        return {self._group[one] for one in self._needed[group]} - {group}

    def _reaches(self, start: int, goal: int) -> bool:
        seen: set[int] = set()
        rest = [start]
        while rest:
            group = rest.pop()
            if group == goal:
                return True
            if group not in seen:
                seen.add(group)
                rest += self._behind(group)
        return False

    def sorted(self) -> list[list[int]]:
        """Returns the groups in order of dependency."""
        order: dict[int, None] = {}
        rest = [(group, False) for group in reversed(self._members)]
        while rest:
            group, done = rest.pop()
            if done:
                order[group] = None
            elif group not in order:
                rest.append((group, True))
                rest += [(other, False) for other in self._behind(group) if other not in order]
        return [sorted(self._members[group]) for group in order]
