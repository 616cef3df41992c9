"""Where two graphs differ in what they call."""

from collections.abc import Iterator
from typing import Any

from torch.fx.node import Node

from calque.comparing.alignment import Odd, Pair, Stretch, origin_of_pair
from calque.comparing.differences import Difference
from calque.comparing.naming import called, same_arguments
from calque.tracing.core.origins import origin_of


def positions(rows: list[Pair | Odd]) -> dict[Any, int]:
    """Where each node of either graph stands among the rows."""
    found: dict[Any, int] = {}
    for i, row in enumerate(rows):
        parts = [
            n for part in row if part for n in (part.nodes if isinstance(row, Odd) else [part])
        ]
        found.update(dict.fromkeys(parts, i))
    return found


def structural(rows: list[Pair | Odd]) -> Iterator[Difference]:
    """Where two graphs call something else, or give the same call other arguments."""
    twins = {row.a: row.b for row in rows if isinstance(row, Pair)}
    for row in rows:
        if isinstance(row, Odd):
            yield _odd(row)
        elif called(row.a) == called(row.b) and not same_arguments(row.a, row.b, twins):
            what = f"{row.a.format_node()} against {row.b.format_node()}"
            yield Difference("structure", what, *row, origin_of_pair(row))


def _odd(row: Odd) -> Difference:
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
    """The first nodes that call something else."""
    for x, y in zip(a.nodes, b.nodes):
        if called(x) != called(y):
            return x, y
    return a.nodes[-1], b.nodes[-1]
