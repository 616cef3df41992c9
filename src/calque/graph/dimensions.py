"""Converts sizes of `torch.export` to JAX's: numbers, or symbols with bounds.

Expressions are classified by sympy's flags, because importing sympy takes a fifth of a second.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add, floordiv, mod, mul
from typing import Any

import jax
import torch
from torch import fx

from calque.errors import TraceError

_FUNCTIONS = {"FloorDiv": floordiv, "Mod": mod, "PythonMod": mod}
"""Functions of sizes, by their names in PyTorch."""


class Dimensions:
    """The symbols in the shapes of some placeholders, as JAX dimensions in one scope.

    Args:
        placeholders: nodes whose `val` contains sizes.
        ranges: the least and greatest value of each symbol.
        fixed: symbols to replace by numbers.
        same: symbols to replace by other symbols.

    Attributes:
        known: the dimension of each symbol.
    """

    def __init__(
        self,
        placeholders: Iterable[fx.Node],
        ranges: Mapping[Any, Any],
        fixed: Mapping[str, int] | None = None,
        same: Mapping[str, str] | None = None,
    ) -> None:
        values = [node.meta.get("val") for node in placeholders]
        sizes = [n for v in values for n in (v.shape if isinstance(v, torch.Tensor) else [v])]
        symbols = {
            s for n in sizes if isinstance(n, torch.SymInt) for s in n.node.expr.free_symbols
        }
        instead = {**(same or {}), **(fixed or {})}
        own = [s for s in symbols if instead.get(str(s), str(s)) == str(s)]
        names = sorted(str(symbol) for symbol in own)
        bounds = [bound for s in own for bound in _bounds(s, ranges.get(s))]
        found = jax.export.symbolic_shape(", ".join(names), constraints=bounds) if names else ()
        self.known: dict[str, Any] = dict(zip(names, found, strict=True))
        for symbol, value in instead.items():
            self.known[symbol] = value if isinstance(value, int) else self.known[value]

    def of(self, shape: Iterable[Any]) -> tuple[Any, ...]:
        """Returns a JAX shape."""
        return tuple(self._of(n.node.expr) if isinstance(n, torch.SymInt) else n for n in shape)

    def _of(self, expression: Any) -> Any:
        """Returns a dimension, or an expression of dimensions (`2 * batch + 1`)."""
        if expression.is_Symbol:
            return self.known[str(expression)]
        if expression.is_Integer:
            return int(expression)
        if expression.is_Add or expression.is_Mul:
            return reduce(add if expression.is_Add else mul, map(self._of, expression.args))
        if expression.is_Pow and expression.exp.is_Integer:
            return self._of(expression.base) ** int(expression.exp)
        if function := _FUNCTIONS.get(expression.func.__name__):
            return function(*map(self._of, expression.args))
        raise TraceError(
            f"a dynamic size of {expression} is not a sum, product, quotient or remainder of "
            "dimensions"
        )


def _bounds(symbol: Any, values: Any) -> list[str]:
    """Returns the constraints on a symbol; JAX assumes that a dimension is not empty."""
    found = []
    if values is not None and values.lower > 1:
        found.append(f"{symbol} >= {int(values.lower)}")
    if values is not None and values.upper.is_finite and values.upper.is_Integer:
        found.append(f"{symbol} <= {int(values.upper)}")
    return found
