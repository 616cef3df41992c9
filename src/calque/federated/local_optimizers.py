"""PyTorch optimizers in traced functions, in which their state has no values.

In a step, reading a one-element tensor returns a traced number, as in a jitted function.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from calque.device.memory.cell import active
from calque.errors import TraceError
from calque.federated.optimizer_steps import STEPS
from calque.program.traced_numbers import Comparisons, number_of


@contextmanager
def numbers_traced() -> Iterator[None]:
    """A context manager in which reading a one-element tensor returns a traced number."""
    lifting = active.trace
    assert lifting is not None
    before, lifting.trace_number = (
        lifting.trace_number,
        lambda array: number_of(array, Comparisons()),
    )
    try:
        yield
    except TraceError as error:
        raise _explained(error) from None
    finally:
        lifting.trace_number = before


def _explained(error: TraceError) -> TraceError:
    """A context manager that rewrites the error of a step that needs a number as a Python float."""
    if "into a Python float" in str(error):
        said = (
            "an optimizer's step or hook reads a tensor as a Python number (float(), "
            "bool(), `if`), which has no value yet.\n"
            "Compute with the tensor (torch.where, clamp), or use another optimizer."
        )
        error.args = (said,)
    return error


def count_on_device(optimizer: torch.optim.Optimizer) -> None:
    """Make an optimizer count its steps on the device of its parameters."""
    for group in optimizer.param_groups:
        if group.get("capturable") is False:
            group["capturable"] = True


@contextmanager
def optimizers_traced() -> Iterator[None]:
    """A context manager in which steps of optimizers are traced."""
    step = _Step()
    handles = [
        register_optimizer_step_pre_hook(step.begin),
        register_optimizer_step_post_hook(step.end),
    ]
    try:
        yield
    except TraceError as error:
        raise _explained(error) from None
    finally:
        for handle in handles:
            handle.remove()
        step.end()


class _Step:
    """The running step, if any."""

    def __init__(self) -> None:
        self._numbers: Any = None
        self._handle: Any = None
        self._gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []

    def begin(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Runs before a step and all of the optimizer's own hooks."""
        if active.trace is None:
            return
        if isinstance(optimizer, torch.optim.LBFGS):
            raise TraceError(
                "LBFGS chooses its step by values, which do not exist in a PyTorch local "
                "function.\nUse it as client_optimizer of learning.fed_avg, or use another "
                "optimizer."
            )
        count_on_device(optimizer)
        self._numbers = numbers_traced()
        self._numbers.__enter__()
        if type(optimizer) in STEPS and len(args) == 1 and not kwargs:  # args is (optimizer,)
            self._handle = optimizer.register_step_pre_hook(self._take)

    def _take(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        """Replace the step of an optimizer that branches on values; removes the gradients from its
        own step.
        """
        STEPS[type(optimizer)](optimizer)
        leaves = [p for group in optimizer.param_groups for p in group["params"]]
        self._gradients = [(leaf, leaf.grad) for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None

    def end(self, *_: Any) -> None:
        """Runs after a step, even if it failed."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        for leaf, gradient in self._gradients:
            leaf.grad = gradient
        self._gradients = []
        if self._numbers is not None:
            self._numbers.__exit__(None, None, None)
            self._numbers = None
