"""Blocks that change how PyTorch runs, in a recording."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from calque.tracing.core.origins import is_engine
from calque.tracing.symbolic.contexts import Contexts
from calque.upstream import torch_c

_GENERATED = "<eval_with_key>"


class RecordedContexts(Contexts):
    """Like `Contexts`, for a program that runs on real data."""

    repeats = True

    def __init__(self, tracer: Any) -> None:
        super().__init__(tracer)
        self._grad = torch_c.is_grad_enabled()

    def set_grad(self, enabled: bool) -> None:
        """Like `Contexts.set_grad`; a graph within the program restores the mode that it found.

        That mode is a recorded constant, so the graph checks that it is still the same. Calls in
        threads other than the program's own record the mode themselves (`grad_beside`).
        """
        if not self._tracer.local.is_main:
            with torch_c.DisableTorchFunction():
                return torch_c.set_grad_enabled(enabled)
        self._grad = enabled
        if not self.are_open() and _is_in_graph():
            now = torch_c.is_grad_enabled()
            self._tracer.assumed.settings.setdefault(("is_grad_enabled", ()), now)
        super().set_grad(enabled)

    def grad_beside(self) -> bool | None:
        """Returns the gradient mode of a thread other than the program's main one,
        if it differs.
        """
        now = None if self._tracer.local.is_main else torch_c.is_grad_enabled()
        return None if now is self._grad else now

    def apply(
        self, application: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record that an `autograd.Function` is applied, without the calls of its forward."""
        return self._tracer.run(application, args, kwargs)

    def make_parameter(self, make: Callable[..., Any], data: object, requires_grad: bool) -> Any:
        """Record that the program creates a parameter, which modes do not intercept."""
        return self._tracer.run(make, (data, requires_grad), {}, torch.nn.Parameter)

    def change_default_dtype(self) -> None:
        """Like `Contexts.change_default_dtype`."""
        self._tracer.refuse(
            "the program changes the default dtype; pass dtype= where tensors are created"
        )

    def enter_dispatch_mode(self, mode: object) -> None:
        """Like `Contexts.enter_dispatch_mode`."""
        self._tracer.refuse(
            f"{type(mode).__name__} is a dispatch mode, which cannot be part of a graph"
        )

    def enter_lost_block(self, what: str, remedy: str) -> None:
        """Like `Contexts.enter_lost_block`."""
        self._tracer.refuse(f"{what} cannot be part of a graph; {remedy[0].lower()}{remedy[1:-1]}")

    def enter_inference_mode(self) -> None:
        """Refuse a `torch.inference_mode` block, which no graph can repeat."""
        self._tracer.refuse("torch.inference_mode cannot be part of a graph; use torch.no_grad()")


def _is_in_graph() -> bool:
    """Returns True if the caller is the code of a graph, not the program's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(_GENERATED):
        if not is_engine(frame.f_code.co_filename):
            return False
        frame = frame.f_back
    return frame is not None
