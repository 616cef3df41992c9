"""The backward pass of a program, for the incoming gradients that exist."""

from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import Array
from jax.errors import JaxRuntimeError
from jax.extend.core import jaxpr_as_fun

from calque.device.memory.cell import read, x64
from calque.device.memory.wrapping import wrap
from calque.device.runtime.in_flight import settled
from calque.errors import TraceError
from calque.program.channels_last import channels_last
from calque.program.compared_extrema import computed_once
from calque.program.execution import cause_of
from calque.program.gradients.batched import batched, is_batched
from calque.program.gradients.differentiable import TracedPart
from calque.program.jaxprs import Late, build, live, may_raise, without
from calque.program.transposed_operands import materialized

Tensor = torch.Tensor


class LatePart:
    """The program that computes the gradients of some tensors.

    Args:
        late: the jaxpr.
        slots: the tensors (see `TracedPart.results`) to which its incoming gradients belong.
        part: the traced backward pass.
    """

    def __init__(self, late: Late, slots: list[int], part: TracedPart) -> None:
        self._closed = late.closed
        self._residuals = late.residuals
        self._may_raise = may_raise(late.closed.jaxpr)
        self._places = [part.results.index(slot) for slot in slots]
        self._by = part.by
        self._whole = part.whole
        self._runs: dict[tuple[int, ...], tuple[list[int], Any]] = {}

    def needed(self, residuals: list[Array]) -> list[Array]:
        """Selects its residuals from those of the forward pass."""
        return [residuals[index] for index in self._residuals]

    def __call__(self, residuals: list[Array], incoming: tuple[Tensor | None, ...]) -> list[Any]:
        """Returns the gradients, None for those to which no incoming gradient contributes.

        Args:
            residuals: its residuals.
            incoming: the gradients of the tensors; None for tensors that have none.
        """
        if any(map(is_batched, incoming)):
            return batched(lambda each: self(residuals, each), incoming)
        missing = tuple(i for i, gradient in enumerate(incoming) if gradient is None)
        known = self._runs.get(missing)
        if known is None:
            known = self._runs[missing] = self._made(frozenset(missing))
        reached, run = known
        with x64():
            late = self._closed.jaxpr.invars[len(residuals) :]
            arrays = [_array(incoming[i], v) for i, v in zip(self._places, late, strict=True)]
            try:
                found = settled(run(*residuals, *arrays))
                if self._may_raise:
                    jax.block_until_ready(found)
            except JaxRuntimeError as error:
                raise cause_of(error) from None
        gradients: list[Any] = [None] * len(self._by)
        for index, array in zip(reached, found, strict=True):
            gradients[index] = wrap(array)
        return gradients

    def reached(self, gradients: list[Any], incoming: tuple[Tensor | None, ...]) -> list[Any]:
        """Returns the gradients to which an incoming gradient contributes."""
        coming = {i for i, gradient in enumerate(incoming) if gradient is not None}
        return [
            None if by.isdisjoint(coming) else g for g, by in zip(gradients, self._by, strict=True)
        ]

    def _made(self, missing: frozenset[int]) -> tuple[list[int], Any]:
        if missing and self._whole:
            raise TraceError(self._whole)
        closed = self._closed
        reached = [i for i, by in enumerate(self._by) if not by <= missing]
        if missing:
            gone = [i for i, place in enumerate(self._places) if place in missing]
            closed = without(closed, len(self._residuals), gone)
            inner = closed.jaxpr
            outputs = [inner.outvars[i] for i in reached]
            closed = build(closed, inner.invars, outputs, live(inner.eqns, outputs))
        return reached, jax.jit(jaxpr_as_fun(materialized(computed_once(channels_last(closed)))))


def _array(gradient: Tensor | None, variable: Any) -> Array:
    if gradient is not None:
        return read(gradient)
    return jnp.zeros(variable.aval.shape, variable.aval.dtype)
