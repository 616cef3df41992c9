"""Programs of derivatives of gradients, created on demand (see `derivatives`)."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import torch
from jax import Array
from jax.extend.core import jaxpr_as_fun

from calque.device.memory.cell import read, x64
from calque.device.runtime.in_flight import settled
from calque.program.channels_last import channels_last
from calque.program.compared_extrema import computed_once
from calque.program.gradients.derivatives import DerivativeStep
from calque.program.gradients.replay import Carrying, carrying
from calque.program.jaxprs import prune
from calque.program.lifting import Input
from calque.program.python_numbers import Formula
from calque.program.results import Outputs
from calque.program.sources import GivenSource, HostSource, NumberSource, Source
from calque.program.transposed_operands import materialized

if TYPE_CHECKING:
    from calque.jitting.recording import TraceRecording

Tensor = torch.Tensor
Retrace = Callable[[list[Any], tuple[DerivativeStep, ...], "TraceRecording"], "TraceRecording"]


class SavedValues(NamedTuple):
    """The values that a call saves for derivatives of its gradients.

    Attributes:
        higher: creates the programs of these derivatives.
        arrays: the inputs of the call.
        leaves: its arguments.
        path: the steps to the gradients that the call computed; empty for the function's own
            results.
        given: the incoming gradients of these steps.
    """

    higher: "HigherDerivatives"
    arrays: list[Array]
    leaves: list[Any]
    path: tuple[DerivativeStep, ...] = ()
    given: tuple[list[Array], ...] = ()

    def differentiable(
        self, step: DerivativeStep, targets: list[Tensor], incoming: list[Tensor]
    ) -> list[Tensor]:
        """Returns the gradients of one step, with a graph.

        Args:
            step: the step.
            targets: the tensors that receive them.
            incoming: the incoming gradients.

        Raises:
            RuntimeError: this is impossible.
        """
        path = (*self.path, step)
        derivative = self.higher.derivative(path, self.leaves)
        given = (*self.given, [read(gradient) for gradient in incoming])
        return derivative(self._replace(path=path, given=given), [*targets, *incoming])


class HigherDerivatives:
    """The programs of derivatives of one program's gradients.

    Args:
        inputs: the inputs of the program.
        recording: the recording of its trace.
        retrace: traces the function again, for the arguments of a call, a path and the recording
            of the first trace.
    """

    def __init__(self, inputs: list[Input], recording: "TraceRecording", retrace: Retrace) -> None:
        self._inputs = inputs
        self._recording = recording
        self._retrace = retrace
        self._known: dict[tuple[DerivativeStep, ...], _Derivative] = {}

    def values(self, arrays: list[Array]) -> dict[Source, Array]:
        """Returns the inputs of a call, by source."""
        rows = zip(self._inputs, arrays, strict=True)
        return {one.source: array for one, array in rows}

    def derivative(self, path: tuple[DerivativeStep, ...], leaves: list[Any]) -> "_Derivative":
        """Returns the program that computes the gradients of a path.

        Raises:
            RuntimeError: the function has changed since the call.
        """
        known = self._known.get(path)
        if known is None:
            known = self._known[path] = _Derivative(self._traced(path, leaves))
        return known

    def _traced(self, path: tuple[DerivativeStep, ...], leaves: list[Any]) -> "TraceRecording":
        recording = self._recording
        _, inference, autocast, *_ = recording.ambient
        if recording.rewritten:
            raise RuntimeError(
                _REFUSED.format("writes to tensors from outside in place, which then have")
            )
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.enable_grad())
            cast = torch.autocast("jax", autocast or torch.bfloat16, enabled=bool(autocast))
            stack.enter_context(cast)
            for guard in recording.guards:
                if hasattr(guard, "holding"):
                    stack.enter_context(guard.holding())
                if hasattr(guard, "holding_for"):
                    stack.enter_context(guard.holding_for(leaves))
            for guard in recording.guards:
                if not guard.holds():
                    raise RuntimeError(f"{_CHANGED}: {guard.why()}. {_REMEDY}")
            return self._retrace(leaves[: recording.count], path, recording)


_CHANGED = (
    "calque.jit cannot take the derivative of these gradients: the function has changed since "
    "the call"
)
_REMEDY = "Take the gradients and their derivatives inside the jitted function."
_REFUSED = "calque.jit cannot take the derivative of these gradients: the function {} a history"


class _Derivative:
    """A program that computes gradients, and the autograd node that gives them a graph."""

    def __init__(self, recording: "TraceRecording") -> None:
        backward = recording.backward
        self._carrying: Carrying | None = None
        if backward is None:
            forward, kept = prune(recording.jaxpr)
        else:
            forward, self._carrying, kept = carrying(recording, backward)
        self._inputs = [recording.inputs[i] for i in kept]
        forward = computed_once(channels_last(forward), backward is not None)
        self._run = jax.jit(jaxpr_as_fun(materialized(forward)))
        self._results = recording.results
        self._count = recording.n_outputs

    def __call__(self, origin: SavedValues, inputs: list[Tensor]) -> list[Tensor]:
        """Returns the gradients.

        Args:
            origin: the call, including its incoming gradients.
            inputs: the tensors that received the gradients, and the incoming gradients.
        """
        values = origin.higher.values(origin.arrays)
        for depth, row in enumerate(origin.given):
            values |= {GivenSource(depth, place): array for place, array in enumerate(row)}
        with x64():
            found = settled(self._run(*[_value(one.source, values) for one in self._inputs]))
        outputs = Outputs(found[: self._count], inputs)
        if self._carrying is not None:
            self._carrying.carry(outputs, found[self._count :], origin)
        return [result.build(outputs) for result in self._results]


def _value(source: Source, values: dict[Source, Array]) -> Any:
    known = values.get(source)
    if known is not None:
        return known
    is_formula = isinstance(source, NumberSource) and type(source.number) is Formula
    if isinstance(source, NumberSource | HostSource) and not is_formula:
        return source.array(())
    raise RuntimeError(f"{_CHANGED}. {_REMEDY}")
