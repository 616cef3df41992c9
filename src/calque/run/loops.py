"""Loops of a traced graph inside a jitted program: `lax.while_loop`."""

from collections.abc import Sequence
from typing import Any

import jax
import torch
from jax import Array, lax

from calque.device.cell import active, read, wrap
from calque.diagnostics import TraceError
from calque.run.choices import Nested, inside, plain
from calque.run.lifting import Lifting
from calque.trace.branching import Branch


def loop(test: Branch, body: Branch, carried: Sequence[Any], captured: Sequence[Any]) -> tuple:
    """`calque.trace.branching.while_loop` where the carried tensors are of the device.

    Raises:
        TraceError: gradients are asked for, or the body writes to tensors or draws random numbers.
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
    """Calls of the test and the body on arrays, within the trace of the program."""

    def __init__(self, outer: Lifting, captured: Sequence[Any]) -> None:
        self._outer, self._captured = outer, captured

    def cells(self, branch: Branch, start: tuple[Array, ...]) -> None:
        """Let the outer trace read what a branch reads, before the loop is entered."""
        found: list[Nested] = []

        def look() -> int:
            found.append(self._run(branch, start)[1])
            return 0

        jax.eval_shape(look)
        nested = found[0]
        if nested.written or nested.draws:
            what = "writes to a tensor from outside" if nested.written else "draws random numbers"
            raise TraceError(
                f"a torch.while_loop on device 'jax' {what} in each turn, which calque.jit cannot "
                "repeat.\nCarry what changes; draw the random numbers before the loop."
            )
        for cell in nested.found:
            self._outer.read(cell)

    def call(self, branch: Branch, values: tuple[Array, ...]) -> tuple[Array, ...]:
        """The arrays that a branch gives."""
        return self._run(branch, values)[0]

    def _run(self, branch: Branch, values: tuple[Array, ...]) -> tuple[tuple[Array, ...], Nested]:
        nested = Nested(self._outer, {}, None)

        def run() -> tuple[Array, ...]:
            results = branch(*map(wrap, values), *self._captured)
            return tuple(plain(read(result)) for result in results)

        with torch.no_grad():
            return inside(nested, run), nested


def _refuse_gradients(test: Branch, body: Branch, values: tuple[Any, ...]) -> None:
    members = (*test.parameters(), *body.parameters())
    tensors = (t for t in (*values, *members) if isinstance(t, torch.Tensor))
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        raise TraceError(
            "a torch.while_loop on device 'jax' has no gradient inside calque.jit: how often it "
            "runs is not known beforehand.\nCall it under torch.no_grad(), or use a `for` loop "
            "with a fixed number of turns."
        )
