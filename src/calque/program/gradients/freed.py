"""Tells, without running a backward pass, whether an earlier one has used a graph up.

A function that calls `backward()` itself and returns its loss leaves such a graph. To try it out
would run what the program has told PyTorch to run in it (hooks, functions with their own backward)
a second time, up to the first node whose values are gone.
"""

import functools
from collections.abc import Collection
from typing import Any

from torch.autograd.function import BackwardCFunction

from calque.program.gradients.border import Edge

_RAW = "_raw_saved_"


def freed(start: Any, goals: Collection[Edge], stops: Collection[Edge]) -> str | None:
    """Returns what PyTorch says of a graph that is used up; None if it may have its values.

    Args:
        start: the node where a backward pass begins.
        goals: the edges whose gradients are wanted: only nodes on the way to them count.
        stops: all edges where the graph ends.
    """
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
            if (said := _freed_node(node)) is not None:
                return said
    return None


def _freed_node(node: Any) -> str | None:
    """Returns what PyTorch says of a node whose values are gone; None for others.

    Of a function in Python without saved tensors, it says the same in both cases.
    """
    if isinstance(node, BackwardCFunction):
        return None
    for name in _saved_by(type(node)):
        try:
            raw = getattr(node, name)
            kept = raw if isinstance(raw, list | tuple) else (raw,)
            if any(one.data is not None for one in kept):
                return None
            getattr(node, name.replace(_RAW, "_saved_"))  # without hooks, which are gone, too
        except RuntimeError as error:
            return str(error)
    return None


@functools.lru_cache(maxsize=1024)
def _saved_by(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith(_RAW))
