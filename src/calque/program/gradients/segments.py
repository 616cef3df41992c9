"""Cuts the autograd graph of a traced function at the tensors that outlive the function.

One of them may have been computed from another: a loss from the logits that are returned with it.
Then the loss's gradients flow through the logits, outside as they do eagerly, so that hooks on the
logits run, and `torch.autograd.grad(loss, logits)` has an answer. So each has a segment of its own,
which ends at the others and at the border. Those whose segments overlap, and of which none comes
from another, are one.
"""

import logging
from collections.abc import Collection, Iterable
from typing import Any

import torch

from calque.program.gradients.border import Edge, is_leaf_node

Tensor = torch.Tensor
logger: logging.Logger = logging.getLogger("calque.jit")

MOST = 128
"""How many tensors may have segments of their own: each is a program."""


class Segment:
    """A part of the graph.

    Attributes:
        results: the tensors that it computes, by index.
        ends: the edges where it ends, and the results that each lies behind.
    """

    def __init__(self, results: set[int], ends: dict[Edge, set[int]]) -> None:
        self.results = results
        self.ends = ends


def segments(tensors: list[Tensor], border: Collection[Edge]) -> list[Segment]:
    """Returns the segments of some tensors, each after those that it needs, within the border."""
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
    """Returns the nodes from one to the next border or result, and the edges there."""
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
        needed: what each tensor was computed from.
    """

    def __init__(self, needed: list[set[int]]) -> None:
        self._group = list(range(len(needed)))
        self._members = {i: [i] for i in range(len(needed))}
        self._needed = {i: set(one) for i, one in enumerate(needed)}

    def join(self, one: int, other: int) -> None:
        """Merge two groups, unless one needs the other."""
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
