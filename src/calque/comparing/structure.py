"""Finds where two graphs make different calls."""

from collections.abc import Iterator
from typing import Any

from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.comparing.alignment import Pair, Unpaired, origin_of_pair
from calque.comparing.differences import Difference
from calque.comparing.naming import (
    called,
    chooses,
    is_only_checked,
    is_part,
    is_read,
    module_of,
    result_of,
)
from calque.comparing.regions import Stretch
from calque.comparing.same import same_arguments, same_results
from calque.comparing.settings import other_settings
from calque.tracing.core.origins import origin_of
from calque.tracing.graph.checks import fresh


def positions(rows: list[Pair | Unpaired], *graphs: GraphModule) -> dict[Any, float]:
    """Returns the row of each node of the graphs. Guards and inputs have no row of their own; they
    get the position before the next node that has one.
    """
    found: dict[Any, float] = {}
    for i, row in enumerate(rows):
        parts = [
            n for part in row if part for n in (part.nodes if isinstance(row, Unpaired) else [part])
        ]
        found.update(dict.fromkeys(parts, i))
    for graph in graphs:
        following: float = len(rows)
        for node in reversed(graph.graph.nodes):
            following = found.get(node, following)
            found.setdefault(node, following - 0.5)
    return found


def structural(
    a: GraphModule, b: GraphModule, rows: list[Pair | Unpaired], results: bool
) -> Iterator[Difference]:
    """Yields where two graphs make different calls, or pass different arguments to the same one.

    Args:
        rows: their nodes.
        results: whether to report also that they return different nodes.
    """
    twins = {row.a: row.b for row in rows if isinstance(row, Pair)}
    if chooses(a) != chooses(b):  # only one contains the calls of both branches
        yield from _of_calls([row for row in rows if isinstance(row, Pair)], twins)
        return
    yield from _of_calls(rows, twins)
    if results and not same_results(a, b, twins):
        what = f"the result is {result_of(a)} against {result_of(b)}"
        yield Difference("structure", what, None, None, None)


def _of_calls(rows: list[Pair | Unpaired], twins: dict[Node, Node]) -> Iterator[Difference]:
    for row in rows:
        if isinstance(row, Unpaired):
            if _calls_that_matter(row.a) != _calls_that_matter(row.b):
                yield _unpaired(row)
        elif _takes_other_part(row, twins):
            continue
        elif called(row.a) == called(row.b):
            what = _other_call(row, twins)
            if what is not None:
                yield Difference("structure", what, *row, origin_of_pair(row))


def _calls_that_matter(stretch: Stretch | None) -> list[str]:
    """Returns what the nodes of a stretch call, without those that nothing but checks use, without
    reads of values, which are only checked in a recording, and without its copies of constants.
    """
    nodes = stretch.nodes if stretch is not None else ()
    return [
        called(node)
        for node in nodes
        if not (is_part(node) or is_read(node) or is_only_checked(node) or node.target is fresh)
    ]


def _other_call(row: Pair, twins: dict[Node, Node]) -> str | None:
    """Returns how two calls of the same function differ; None if they do not."""
    if not same_arguments(row.a, row.b, twins):
        return f"{row.a.format_node()} against {row.b.format_node()}"
    if row.a.op == row.b.op == "call_module":
        return other_settings(module_of(row.a), module_of(row.b))
    return None


def _takes_other_part(row: Pair, twins: dict[Node, Node]) -> bool:
    """Returns True for different parts of two results, where one result is a layer's and the other
    is that of the function in it.
    """
    if not (is_part(row.a) and is_part(row.b) and row.a.args and row.b.args):
        return False
    return twins.get(row.a.args[0]) is not row.b.args[0]  # pyright: ignore[reportArgumentType, reportCallIssue]


def _unpaired(row: Unpaired) -> Difference:
    if row.a is None or row.b is None:
        side, stretch = ("a", row.a) if row.a is not None else ("b", row.b)
        assert stretch is not None
        what = f"only {side} calls {', '.join(stretch.calls)} here"
        node = stretch.nodes[0]
        nodes = (node, None) if side == "a" else (None, node)
        return Difference("structure", what, *nodes, origin_of(node))
    first, second = _unlike(row.a, row.b)
    what = f"a calls {', '.join(row.a.calls)}, and b {', '.join(row.b.calls)}"
    return Difference("structure", what, first, second, origin_of(first))


def _unlike(a: Stretch, b: Stretch) -> tuple[Node, Node]:
    """Returns the first nodes with different calls."""
    for x, y in zip(a.nodes, b.nodes):
        if called(x) != called(y):
            return x, y
    return a.nodes[-1], b.nodes[-1]
