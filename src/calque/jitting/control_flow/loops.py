"""Loops of a traced graph inside a jitted program: `lax.while_loop`."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from jax import Array, lax

from calque.device.memory.cell import active, read
from calque.device.memory.wrapping import wrap
from calque.errors import TraceError
from calque.jitting.control_flow.choices import BranchView, all_read, inside, plain
from calque.program.lifting import Lifting
from calque.tracing.graph.branching import Branch

Tensor = torch.Tensor


def loop(
    test: Branch, body: Branch, carried: Sequence[Any], captured: Sequence[Any]
) -> tuple[Any, ...]:
    """Implements `calque.tracing.graph.branching.while_loop` for loop variables on the device.

    Raises:
        TraceError: gradients are needed, or the body writes to tensors or draws random numbers.
    """
    outer = active.trace
    if not isinstance(outer, Lifting):
        values = tuple(carried)
        while test(*values, *captured)[0]:
            values = tuple(body(*values, *captured))
        return values
    _refuse_gradients(test, body, (*carried, *captured))
    look = _Calls(outer, captured)
    start = tuple(plain(read(value)) for value in carried)
    for branch in (test, body):
        look.cells(branch, start)
    return tuple(
        wrap(array)
        for array in lax.while_loop(
            lambda values: look.call(test, values)[0].reshape(()).astype(bool),
            lambda values: look.call(body, values),
            start,
        )
    )


class _Calls:
    """Calls the test and the body on arrays, in the trace of the program."""

    def __init__(self, outer: Lifting, captured: Sequence[Any]) -> None:
        self._outer, self._captured = outer, captured

    def cells(self, branch: Branch, start: tuple[Array, ...]) -> None:
        """Make the outer trace read the cells that a branch reads, before the loop."""
        nested, gradients = BranchView(self._outer, {}, None), torch.is_grad_enabled()

        def look() -> int:
            values = [wrap(value) for value in start]  # traced, so nothing is computed
            with torch.set_grad_enabled(gradients):
                found = inside(nested, lambda: all_read(branch(*values, *self._captured)))
            if any(t.requires_grad for t in _tensors(found)):
                raise _no_gradient()
            return 0

        jax.eval_shape(look)
        _refuse_effects(nested)
        for cell in nested.found:
            self._outer.read(cell)

    def call(self, branch: Branch, values: tuple[Array, ...]) -> tuple[Array, ...]:
        """Returns the arrays that a branch computes."""
        nested = BranchView(self._outer, {}, None)
        return _called(nested, lambda: branch(*map(wrap, values), *self._captured))


def _called(nested: BranchView, call: Callable[[], Any]) -> tuple[Array, ...]:
    """Returns the arrays of a branch's result."""

    def run() -> tuple[Array, ...]:
        return tuple(plain(read(tensor)) for tensor in _tensors(call()))

    with torch.no_grad():
        return inside(nested, run)


def _tensors(found: Any) -> Sequence[Tensor]:
    return (found,) if isinstance(found, Tensor) else found


def arrays_of(nested: BranchView, call: Callable[[], Any]) -> tuple[Array, ...]:
    """Returns the arrays that the body of a loop returns.

    Raises:
        TraceError: it writes to tensors from outside, or draws random numbers.
    """
    found = _called(nested, call)
    _refuse_effects(nested)
    return found


def _refuse_effects(nested: BranchView) -> None:
    if nested.written or nested.draws:
        what = "writes to a tensor from outside" if nested.written else "draws random numbers"
        raise TraceError(
            f"the body of a loop on device 'jax' {what} in each iteration, which calque.jit "
            "cannot repeat.\nMake what changes a loop variable, and draw random numbers before "
            "the loop."
        )


def _refuse_gradients(test: Branch, body: Branch, values: tuple[Any, ...]) -> None:
    members = (*test.parameters(), *body.parameters())
    tensors = (t for t in (*values, *members) if isinstance(t, torch.Tensor))
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        raise _no_gradient()


def _no_gradient() -> TraceError:
    return TraceError(
        "a torch.while_loop on device 'jax' has no gradient inside calque.jit, because the "
        "number of iterations is not known in advance.\nCall it under torch.no_grad(), or use a "
        "`for` loop with a fixed number of iterations."
    )
