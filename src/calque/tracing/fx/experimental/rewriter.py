"""The names of `torch.fx.experimental.rewriter`, with a tracer of calque's."""

from collections.abc import Callable
from typing import Any

import torch
import torch.fx.experimental.rewriter as _theirs
from torch.fx.experimental.rewriter import AST_Rewriter, _rewrite
from torch.fx.graph import Graph

from calque.tracing.tracer.tracer import Tracer

__all__ = ["AST_Rewriter", "RewritingTracer"]


class RewritingTracer(Tracer):
    """Traces a program whose `assert` statements have become calls of `torch._assert`.

    >>> graph = RewritingTracer().trace(torch.nn.Identity())
    >>> [node.op for node in graph.nodes]
    ['placeholder', 'output']
    """

    def trace(
        self,
        root: torch.nn.Module | Callable[..., Any],
        concrete_args: dict[str, Any] | None = None,
    ) -> Graph:
        """Like `Tracer.trace`."""
        return super().trace(_rewrite(root), concrete_args)


def __getattr__(name: str) -> object:
    """Returns any other name of torch's module."""
    return getattr(_theirs, name)
