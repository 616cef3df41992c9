"""The two graphs that are compared, each run separately."""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.comparing.alignment import Pair, origin_of_pair
from calque.comparing.differences import Difference
from calque.comparing.naming import flat, has_values, result_of
from calque.comparing.running import GraphRun, copied, moved, on_device, same_random_numbers
from calque.comparing.values import NUMBERS, compared, kept, other_structure, parts_of
from calque.tracing.core.origins import NodeOrigin, origin_of


class Side:
    """One of the two graphs: a copy on its device, with its arguments."""

    def __init__(
        self, graph: GraphModule, device: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        with warnings.catch_warnings():
            # Raised by PyTorch for its own tree specs.
            warnings.simplefilter("ignore", FutureWarning)
            self.graph: GraphModule = copied(graph)
        self._own = {node.name: node for node in graph.graph.nodes}
        if device is not None:
            self.graph.to(device)
        self.device: str = device or "cpu"
        self.args: Any = moved(args, device)
        self.kwargs: Any = moved(kwargs, device)
        self._there = device
        self.failed: tuple[Node, Exception] | None = None
        self.changed: set[str] = set()

    def run(self, see: Any) -> list[Any]:
        """Returns the graph's result, and its arguments and state after the run."""
        run = GraphRun(self.graph, see)
        before = {name: tensor._version for name, tensor in self._state()}
        with same_random_numbers(self.device), on_device(self._there):
            result = run.result(self.args, self.kwargs)
        if run.failed is not None:
            self.failed = self._own[run.failed[0].name], run.failed[1]
        after = dict(self._state())
        self.changed = {name for name in after if after[name]._version != before.get(name)}
        return [result, self.args, self.kwargs, after]

    def _state(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.graph.named_parameters()
        yield from self.graph.named_buffers()


_CONSTANT = "_tensor_constant"


def differing(a: Side, b: Side, pairs: list[Pair], tolerances: Any) -> Iterator[Difference]:
    """Yields where the values of two graphs differ, or only one of them raises.

    Raises:
        Exception: an exception that both raise.
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
    if a.failed is not None or b.failed is not None:
        yield from _failed(a, b, not found)
        return
    names = "the result", "the arguments after the call", "the keyword arguments after the call"
    for i, (name, x, y) in enumerate(zip(names, first, second)):
        origins = [node and origin_of(node) for node in _given(a)] if not i else []
        yield from _of_ends(name, x, y, tolerances, origins)
    yield from _of_state(a, b, first[3], second[3], tolerances)


def _of_state(
    a: Side, b: Side, left: dict[str, Any], right: dict[str, Any], tolerances: object
) -> Iterator[Difference]:
    """Yields the differences of buffers, and of parameters that were written to."""
    changed = a.changed | b.changed
    for name in left:
        is_own = isinstance(left[name], torch.nn.Parameter) or name.startswith(_CONSTANT)
        if name not in right or (is_own and name not in changed):
            continue  # each tracer numbers its own constants
        kind = "parameter" if isinstance(left[name], torch.nn.Parameter) else "buffer"
        yield from _of_ends(
            f"the {kind} {name} after the call", left[name], right[name], tolerances
        )


def _failed(a: Side, b: Side, is_alike: bool) -> Iterator[Difference]:
    """Yields a difference if only one raises, or both raise different errors.

    Args:
        is_alike: whether no difference was found before.
    """
    errors = {
        name: f"{type(side.failed[1]).__name__}: {side.failed[1]}"
        for name, side in (("a", a), ("b", b))
        if side.failed is not None
    }
    nodes = a.failed and a.failed[0], b.failed and b.failed[0]
    failed = nodes[0] or nodes[1]
    assert failed is not None
    if len(errors) == 1:
        (name, what), *_ = errors.items()
        yield Difference("error", f"only {name} raises {what}", *nodes, origin_of(failed))
    elif errors["a"] != errors["b"]:
        what = f"a raises {errors['a']}\nand b {errors['b']}"
        yield Difference("error", what, *nodes, origin_of(failed))
    elif is_alike and a.failed is not None:
        raise a.failed[1]


def _given(side: Side) -> list[Node | None]:
    """Returns the node of each tensor or number in the result of a graph, in order."""
    parts = (part for part in flat(result_of(side.graph)) if isinstance(part, (Node, *NUMBERS)))
    return [part if isinstance(part, Node) else None for part in parts]


def _of_ends(
    name: str, a: object, b: object, tolerances: Any, origins: Sequence[NodeOrigin | None] = ()
) -> Iterator[Difference]:
    """Yields how two results differ.

    Args:
        origins: the node of each tensor or number in the first result; may be empty.
    """
    first, second = parts_of(a), parts_of(b)
    other = other_structure(first.structure, second.structure)
    if other is not None:
        yield Difference("structure", f"{name}: {other}", None, None, None)
    if len(first.leaves) != len(second.leaves):
        if other is None:
            what = f"{len(first.leaves)} tensors or numbers against {len(second.leaves)}"
            yield Difference("structure", f"{name}: {what}", None, None, None)
        return
    known = origins if len(origins) == len(first.leaves) else [None] * len(first.leaves)
    for x, y, origin in zip(first.leaves, second.leaves, known):
        unlike = compared([x], [y], tolerances)
        if unlike is not None:
            kind, what, *errors = unlike
            yield Difference(kind, f"{name}: {what}", None, None, origin, *errors)
            return
