"""Blocks that change how PyTorch runs, in a recording."""

from collections.abc import Callable
from typing import Any

from calque.tracing.symbolic.contexts import Contexts


class RecordedContexts(Contexts):
    """As `Contexts`, of a program that runs for real."""

    def apply(self, application: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        """Record that an `autograd.Function` is applied: what its forward does is its own."""
        return self._tracer.run(application, args, kwargs)

    def enter_inference_mode(self) -> None:
        """A `torch.inference_mode` block, which no graph can repeat."""
        self._tracer.refuse("torch.inference_mode cannot be part of a graph; use torch.no_grad()")
