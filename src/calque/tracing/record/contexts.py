"""Blocks that change how PyTorch runs, in a recording."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from calque.tracing.core.origins import is_engine
from calque.tracing.symbolic.contexts import Contexts
from calque.upstream import torch_c

_GENERATED = "<eval_with_key>"


class RecordedContexts(Contexts):
    """As `Contexts`, of a program that runs for real."""

    repeats = True

    def set_grad(self, enabled: bool) -> None:
        """As `Contexts.set_grad`; a graph within the program restores the mode that it has found.

        Which one that is, is a number by then: so it is checked that it is the same.
        """
        if not self.are_open() and _is_in_graph():
            now = torch_c.is_grad_enabled()
            self._tracer.assumed.settings.setdefault(("is_grad_enabled", ()), now)
        super().set_grad(enabled)

    def apply(self, application: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        """Record that an `autograd.Function` is applied: what its forward does is its own."""
        return self._tracer.run(application, args, kwargs)

    def enter_inference_mode(self) -> None:
        """A `torch.inference_mode` block, which no graph can repeat."""
        self._tracer.refuse("torch.inference_mode cannot be part of a graph; use torch.no_grad()")


def _is_in_graph() -> bool:
    """Whether the code of a graph is what calls, and no code of the program's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(_GENERATED):
        if not is_engine(frame.f_code.co_filename):
            return False
        frame = frame.f_back
    return frame is not None
