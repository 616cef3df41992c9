"""The names of `torch.fx.experimental.rewriter`, over calque's tracer."""

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.rewriter import AST_Rewriter, _rewrite
from torch.fx.graph import Graph

from calque.trace.tracer import Tracer

__all__ = ["AST_Rewriter", "RewritingTracer"]


class RewritingTracer(Tracer):
    """A tracer that first rewrites the source: `assert` becomes a call of `torch._assert`."""

    def trace(
        self,
        root: torch.nn.Module | Callable[..., Any],
        concrete_args: dict[str, Any] | None = None,
    ) -> Graph:
        """As `Tracer.trace`, of the rewritten program."""
        return super().trace(_rewrite(root), concrete_args)
