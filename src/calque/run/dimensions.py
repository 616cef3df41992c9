"""The sizes of `torch.export` as sizes of JAX: numbers, or symbols with bounds."""

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add, mul
from typing import Any

import jax
import sympy
import torch
from torch import fx

from calque.diagnostics import TraceError


class Dimensions:
    """The symbols in the shapes of some placeholders, as JAX's dimensions in one scope.

    Args:
        placeholders: nodes whose `val` has sizes in it.
        ranges: the least and greatest value of each symbol.
    """

    def __init__(self, placeholders: Iterable[fx.Node], ranges: Mapping[Any, Any]) -> None:
        values = [node.meta.get("val") for node in placeholders]
        sizes = [n for v in values if isinstance(v, torch.Tensor) for n in v.shape]
        symbols = {
            s for n in sizes if isinstance(n, torch.SymInt) for s in n.node.expr.free_symbols
        }
        names = sorted(str(symbol) for symbol in symbols)
        bounds = [bound for s in symbols for bound in _bounds(s, ranges.get(s))]
        found = jax.export.symbolic_shape(", ".join(names), constraints=bounds) if names else ()
        self._known = dict(zip(names, found, strict=True))

    def of(self, shape: Iterable[Any]) -> tuple[Any, ...]:
        """A shape of JAX's."""
        return tuple(self._of(n.node.expr) if isinstance(n, torch.SymInt) else n for n in shape)

    def _of(self, expression: Any) -> Any:
        """A dimension, or a sum or product of some (`2 * batch + 1`)."""
        if isinstance(expression, sympy.Symbol):
            return self._known[str(expression)]
        if isinstance(expression, sympy.Integer):
            return int(expression)
        if isinstance(expression, sympy.Add | sympy.Mul):
            combine = add if isinstance(expression, sympy.Add) else mul
            return reduce(combine, map(self._of, expression.args))
        raise TraceError(f"a dynamic size of {expression} is not a sum or product of dimensions")


def _bounds(symbol: Any, values: Any) -> list[str]:
    """The constraints on a symbol; JAX takes for granted that a dimension is not empty."""
    found = []
    if values is not None and values.lower > 1:
        found.append(f"{symbol} >= {int(values.lower)}")
    if values is not None and values.upper.is_finite and isinstance(values.upper, sympy.Integer):
        found.append(f"{symbol} <= {int(values.upper)}")
    return found
