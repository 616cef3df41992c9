"""`options={"buckets": ...}`: the sizes to which varying sizes are padded."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx

Rule = Callable[[int], int]
"""Returns the size to pad a size to; the size itself if there is none."""


class Buckets:
    """The rules for the varying sizes of a captured graph.

    Args:
        option: "pow2", a list of sizes, or a dict of either by the dimension of the input.
        graph: the graph captured by Dynamo.

    Attributes:
        rules: the rule of each symbol, in the order of the inputs.
        orders: the symbols in each axis of the values that a forward saves for its backward, by
            name.

    Raises:
        ValueError: the option has another form.
    """

    def __init__(self, option: Any, graph: fx.GraphModule) -> None:
        by_dimension = option if isinstance(option, Mapping) else None
        if by_dimension is not None and not all(isinstance(d, int) for d in by_dimension):
            raise ValueError("the keys of buckets must be integers: dimensions of inputs")
        chosen = {d: _rule(o) for d, o in (by_dimension or {}).items()}
        everywhere = _rule(option) if by_dimension is None else None
        self.rules: dict[str, Rule] = {}
        self.orders: dict[str, list[list[str]]] = {}
        for value in _inputs(graph):
            for dimension, size in enumerate(value.shape):
                rule = everywhere or chosen.get(dimension) or chosen.get(dimension - value.ndim)
                symbol = symbol_of(size)
                if rule is not None and symbol is not None:
                    self.rules.setdefault(symbol, rule)

    def padded(self, symbol: str, size: int, most: int | None) -> int:
        """Returns the size to pad a size to; `most` is the greatest that the program allows."""
        found = max(size, self.rules[symbol](size))
        return found if most is None or found <= most else most


def symbol_of(size: object) -> str | None:
    """Returns the symbol of a size; None for numbers and for sizes computed from symbols."""
    if not isinstance(size, torch.SymInt):
        return None
    expression = size.node.expr
    return str(expression) if expression.is_symbol else None


def number(size: Any, sizes: Mapping[str, int]) -> int:
    """Returns the value of a size for values of its symbols."""
    if not isinstance(size, torch.SymInt):
        return size
    expression = size.node.expr
    return int(
        expression.xreplace({s: sympy.Integer(sizes[str(s)]) for s in expression.free_symbols})
    )


def _inputs(graph: fx.GraphModule) -> Iterable[torch.Tensor]:
    for node in graph.graph.nodes:
        value = node.meta.get("example_value", node.meta.get("val"))
        if node.op == "placeholder" and isinstance(value, torch.Tensor):
            yield value


def _rule(option: object) -> Rule:
    if option == "pow2":
        return lambda size: 1 << (size - 1).bit_length()
    if isinstance(option, Sequence) and option and all(type(n) is int and n > 0 for n in option):
        sizes = sorted(option)
        return lambda size: next((n for n in sizes if n >= size), size)
    raise ValueError(
        "buckets must be 'pow2', a list of sizes, or a dict from dimensions to either, not "
        f"{option!r}"
    )
