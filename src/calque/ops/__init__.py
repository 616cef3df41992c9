"""The op table: what every ATen operator means, as a pure JAX function."""

from calque.ops import creation, pointwise, reduction
from calque.ops.registry import RULES, Rule, find, op

__all__ = ["RULES", "Rule", "creation", "find", "op", "pointwise", "reduction"]
