"""Detects, without running a backward pass, whether an earlier one has freed a graph.

A function that calls `backward()` itself and returns its loss leaves such a graph. Trying a
backward pass would run user code in it (hooks, custom backward functions) a second time, up to the
first node without saved values.
"""

import functools
from collections.abc import Collection, Iterator
from typing import Any

from torch.autograd.function import BackwardCFunction

from calque.program.gradients.graph_boundary import Edge
from calque.state.watched_calls import unwatched

_RAW = "_raw_saved_"


@unwatched
def freed(start: Any, goals: Collection[Edge], stops: Collection[Edge]) -> str | None:
    """Returns PyTorch's message if a graph was freed; None if it may still have its saved values.

    Args:
        start: the node at which a backward pass begins.
        goals: the edges whose gradients are needed; only nodes on the way to them count.
        stops: all edges where the graph ends.
    """
    return next((said for node in _nodes(start, goals, stops) if (said := _freed_node(node))), None)


def saves(start: Any, goals: Collection[Edge], stops: Collection[Edge]) -> bool:
    """Returns True if a graph, which was not freed, has saved values (see `freed`)."""
    return any(map(_has_saved, _nodes(start, goals, stops)))


def _nodes(start: Any, goals: Collection[Edge], stops: Collection[Edge]) -> Iterator[Any]:
    """Yields the nodes from a start on the way to goals."""
    reaching: dict[Any, bool] = {}
    rest = [(start, False)]
    while rest:
        node, is_behind = rest.pop()
        if node in reaching and not is_behind:
            continue
        edges = [edge for edge in node.next_functions if edge[0] is not None]
        if not is_behind:
            reaching[node] = False
            rest.append((node, True))
            rest += [(one, False) for one, number in edges if (one, number) not in stops]
        elif any(e in goals or (e not in stops and reaching[e[0]]) for e in edges):
            reaching[node] = True
            yield node


def _has_saved(node: object) -> bool:
    for name in _saved_by(type(node)):
        raw = getattr(node, name)
        if any(one.data is not None for one in (raw if isinstance(raw, list | tuple) else (raw,))):
            return True
    return False


def _freed_node(node: object) -> str | None:
    """Returns PyTorch's message for a node whose saved values were freed; None for others.

    For a Python function without saved tensors, this cannot be distinguished.
    """
    if isinstance(node, BackwardCFunction):
        return None
    for name in _saved_by(type(node)):
        try:
            raw = getattr(node, name)
            kept = raw if isinstance(raw, list | tuple) else (raw,)
            if any(one.data is not None for one in kept):
                return None
            getattr(node, name.replace(_RAW, "_saved_"))  # without hooks, which are freed too
        except RuntimeError as error:
            return str(error)
    return None


@functools.lru_cache(maxsize=1024)
def _saved_by(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith(_RAW))
