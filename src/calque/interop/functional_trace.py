"""A trace of a functional module: its result and its gradient as functions of arrays."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import torch
from jax import Array
from jax.extend.core import ClosedJaxpr

from calque.errors import TraceError
from calque.interop.array_functions import in_64_bits, picking, refusing
from calque.interop.functional_arguments import is_array
from calque.interop.functional_call import FunctionalCall, Pure
from calque.interop.spread_gradients import Spread
from calque.program.index_narrowing import with_narrow_indices
from calque.program.jaxprs import split
from calque.program.lifted import lift
from calque.program.sources import ArgumentSource, IncomingSource, KeySource, Source
from calque.state import Running

if TYPE_CHECKING:
    from calque.interop.functional import Functional


def _place(source: Source, count: int) -> int:
    """Returns the position of an input's array among those of the caller."""
    if isinstance(source, IncomingSource):
        return source.slot
    return source.index if isinstance(source, ArgumentSource) else count - 1


class FunctionalTrace:
    """A traced form of a functional module.

    Args:
        functional: the module.
        leaves, spec: an example call, flattened.
        running: records its reads of Python's state.
        arguments_are_leaves: whether differentiated tensors among the arguments are leaves of
            PyTorch's graph, which must not be written in place.
    """

    def __init__(
        self,
        functional: "Functional",
        leaves: list[Any],
        spec: Any,
        running: Running,
        arguments_are_leaves: bool = True,
    ) -> None:
        lifting = Pure()
        self._call = call = FunctionalCall(functional, lifting, running, arguments_are_leaves)
        lifted = lift(lifting, lambda: call.run(leaves, spec), torch.enable_grad())
        if lifting.written:
            raise TraceError(
                "a functional module, which has no side effects, writes to a tensor that is not "
                "an argument: pass it as an argument, or make it a buffer of the module"
            )
        jaxpr, inputs = with_narrow_indices(lifted.closed), lifted.inputs
        self.random: bool = any(isinstance(one.source, KeySource) for one in lifting.inputs)
        count = sum(is_array(leaf) for leaf in leaves) + self.random
        places = [_place(one.source, count) for one in inputs]
        self.run: Callable[..., Any]
        if call.gradient_of:
            self.run = self._with_gradient(jaxpr, inputs, places, count)
        else:
            self.run = picking(jaxpr, places, functional._gradient == "torch")
        if call.used_up:
            self.run = refusing(self.run, call.used_up)

    @property
    def gradient_of(self) -> list[int]:
        """The arguments that gradients reach."""
        return self._call.gradient_of

    def _with_gradient(
        self, jaxpr: ClosedJaxpr, inputs: list[Any], places: list[Any], count: int
    ) -> Callable[..., Any]:
        incoming_at = {
            i: one.source.slot
            for i, one in enumerate(inputs)
            if isinstance(one.source, IncomingSource)
        }
        slots = list(incoming_at)
        n_outputs, gradient_of = self._call.n_outputs, self._call.gradient_of
        forward, (late,), kept = split(jaxpr, [(slots, len(gradient_of))], n_outputs)
        forward_places = [places[i] for i in kept]
        needed = [self._call.carriers[slot] for slot in incoming_at.values()]
        early, backward = in_64_bits(forward), in_64_bits(late.closed)

        @jax.custom_vjp
        def run(*arrays: Array) -> list[Array]:
            return early(*[arrays[i] for i in forward_places])[:n_outputs]

        def run_forward(*arrays: Array) -> tuple[list[Array], tuple[list[Array], Spread]]:
            outputs = early(*[arrays[i] for i in forward_places])
            return outputs[:n_outputs], (outputs[n_outputs:], Spread(arrays))

        def run_backward(kept: tuple[list[Array], Spread], incoming: Any) -> tuple[Any, ...]:
            residuals, spread = kept
            # PyTorch's gradient of a complex number is the conjugate of JAX's.
            gradients = backward(*residuals, *[jnp.conj(incoming[i]) for i in needed])
            result: list[Any] = [None] * count
            for position, value in zip(gradient_of, gradients, strict=True):
                result[position] = spread.like(position, jnp.conj(value))
            return tuple(result)

        run.defvjp(run_forward, run_backward)
        return run

    def rebuild(self, arrays: list[Array]) -> Any:
        """Returns the result for the program's output arrays."""
        result, buffers = self._call.results.of(arrays)
        return (result, buffers) if self._call.has_buffers else result
