"""The two graphs that are compared, each run by itself."""

import contextlib
import copy
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.comparing.alignment import Pair, origin_of_pair
from calque.comparing.differences import Difference
from calque.comparing.naming import has_values
from calque.comparing.running import Run, moved, same_random_numbers
from calque.comparing.values import compared, kept, other_structure, parts_of
from calque.tracing.core.origins import origin_of


class Side:
    """One of the two: a copy of a graph, on its device, and what it is called with."""

    def __init__(
        self, graph: GraphModule, device: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, of its own tree specs
            self.graph: GraphModule = copy.deepcopy(graph)
        if device is not None:
            self.graph.to(device)
        self.device: str = device or "cpu"
        self.args: Any = moved(args, device)
        self.kwargs: Any = moved(kwargs, device)
        self._there = device
        self.failed: tuple[Node, Exception] | None = None
        self.changed: set[str] = set()

    def run(self, see: Any) -> list[Any]:
        """Returns the graph's result, and what it has made of its arguments and buffers."""
        run = Run(self.graph, see)
        before = {name: buffer._version for name, buffer in self.graph.named_buffers()}
        with same_random_numbers(self.device), _on(self._there):
            result = run.result(self.args, self.kwargs)
        self.failed = run.failed
        after = dict(self.graph.named_buffers())
        self.changed = {name for name in after if after[name]._version != before.get(name)}
        return [result, self.args, self.kwargs, after]


_CONSTANT = "_tensor_constant"


def _on(device: str | None) -> Any:
    return torch.device(device) if device is not None else contextlib.nullcontext()


def differing(a: Side, b: Side, pairs: list[Pair], tolerances: Any) -> Iterator[Difference]:
    """Yields where the values of two graphs differ, or only one of them raises.

    Raises:
        Exception: what both raise.
    """
    there: dict[str, list[Any]] = {}
    wanted = {pair.a.name for pair in pairs}

    def keep(node: Node, value: Any) -> None:
        if node.name in wanted:
            there[node.name] = kept(value)

    twins = {pair.b.name: pair for pair in pairs}
    found: list[Difference] = []

    def compare(node: Node, value: Any) -> None:
        pair = twins.get(node.name)
        if pair is not None and pair.a.name in there:
            unlike = compared(there.pop(pair.a.name), kept(value), tolerances)
            is_known = has_values(pair.a) or has_values(pair.b)
            if unlike is not None and (is_known or unlike[0] != "values"):
                kind, what, *errors = unlike
                found.append(Difference(kind, what, *pair, origin_of_pair(pair), *errors))

    first, second = a.run(keep), b.run(compare)
    yield from found
    if a.failed is not None and b.failed is not None:
        raise a.failed[1]
    if a.failed is not None or b.failed is not None:
        yield _failed(a, b)
        return
    names = "the result", "the arguments, as they are left,", "the keywords, as they are left,"
    for name, x, y in zip(names, first, second):
        yield from _of_ends(name, x, y, tolerances)
    left, right = first[3], second[3]
    for name in left.keys() & right.keys():
        if name.startswith(_CONSTANT) and not (name in a.changed or name in b.changed):
            continue  # each tracer counts its own
        what = f"the buffer {name}, as it is left,"
        yield from _of_ends(what, left[name], right[name], tolerances)


def _failed(a: Side, b: Side) -> Difference:
    side, failed = ("a", a.failed) if a.failed is not None else ("b", b.failed)
    assert failed is not None
    node, error = failed
    nodes = (node, None) if side == "a" else (None, node)
    told = f"only {side} raises {type(error).__name__}: {error}"
    return Difference("error", told, *nodes, origin_of(node))


def _of_ends(name: str, a: Any, b: Any, tolerances: Any) -> Iterator[Difference]:
    first, second = parts_of(a), parts_of(b)
    other = other_structure(first.structure, second.structure)
    if other is not None:
        yield Difference("structure", f"{name}: {other}", None, None, None)
    if other is not None and len(first.leaves) != len(second.leaves):
        return
    unlike = compared(first.leaves, second.leaves, tolerances)
    if unlike is not None:
        kind, what, *errors = unlike
        yield Difference(kind, f"{name}: {what}", None, None, None, *errors)
