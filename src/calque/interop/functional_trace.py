"""One trace of a functional module: what it computes, and its gradient, as a function of arrays."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from jax.extend.core import ClosedJaxpr

from calque.device.memory.cell import Cell, read
from calque.device.memory.wrapping import wrap
from calque.errors import TraceError
from calque.interop.array_functions import in_64_bits, picking, refusing
from calque.interop.functional_arguments import is_array, packed
from calque.interop.functional_results import Results
from calque.program.gradients.border import has_graph
from calque.program.gradients.differentiable import gradients_of
from calque.program.jaxprs import split
from calque.program.lifted import lift
from calque.program.lifting import Lifting
from calque.program.narrowing import with_narrow_indices
from calque.program.sources import ArgumentSource, IncomingSource, Source
from calque.state import Running

if TYPE_CHECKING:
    from calque.interop.functional import Functional


class _Pure(Lifting):
    """Lifts nothing: what is no argument of a pure function is a constant of it."""

    def read(self, cell: Cell) -> Array:
        """The value of a cell: of one from outside, as it is now."""
        if self.is_fresh(cell) or cell in self.values or isinstance(cell.array, jax.core.Tracer):
            return super().read(cell)
        return cell.array

    def constant(self, tensor: torch.Tensor) -> Array:
        """The value of a CPU tensor, as it is now."""
        return self._host_constant(tensor)


@dataclass(frozen=True, slots=True)
class _KeySource(Source):
    """The key of the random numbers, which the caller gives behind all other arguments."""


def _place(source: Source, count: int) -> int:
    """Returns where the array of an input stands among those that the caller gives."""
    if isinstance(source, IncomingSource):
        return source.slot
    return source.index if isinstance(source, ArgumentSource) else count - 1


class Trace:
    """One traced form of a functional module.

    Args:
        functional: the module.
        leaves, spec: an example call, flattened.
        running: watches what it reads of Python's state.
        arguments_are_leaves: whether the tensors among the arguments are leaves of PyTorch's
            graph, as far as they are differentiated. Those may not be written in place.
    """

    def __init__(
        self,
        functional: "Functional",
        leaves: list[Any],
        spec: Any,
        running: Running,
        arguments_are_leaves: bool = True,
    ) -> None:
        self._functional = functional
        self._arguments_are_leaves = arguments_are_leaves
        self._running = running
        self._lifting = _Pure()
        lifted = lift(self._lifting, lambda: self._body(leaves, spec), torch.enable_grad())
        if self._lifting.written:
            raise TraceError(
                "a tensor that is no argument is written in a functional module, which has no "
                "effects: pass it as an argument, or make it a buffer of the module"
            )
        jaxpr, inputs = with_narrow_indices(lifted.closed), lifted.inputs
        self.random: bool = any(isinstance(one.source, _KeySource) for one in self._lifting.inputs)
        count = sum(is_array(leaf) for leaf in leaves) + self.random
        places = [_place(one.source, count) for one in inputs]
        self.run: Callable[..., Any]
        if self.gradient_of:
            self.run = self._with_gradient(jaxpr, inputs, places, count)
        else:
            self.run = picking(jaxpr, places, functional._gradient == "torch")
        if self._used_up:
            self.run = refusing(self.run, self._used_up)

    def _body(self, leaves: list[Any], spec: Any) -> list[Array]:
        lifting = self._lifting
        differentiable = self._functional._gradient == "torch"
        stand_ins: list[Any] = []
        index = 0
        for leaf in leaves:
            if not is_array(leaf):
                stand_ins.append(leaf)
                continue
            array = lifting.new_input(ArgumentSource(index), leaf.shape, leaf.dtype)
            tensor = wrap(array)
            if differentiable and (tensor.is_floating_point() or tensor.is_complex()):
                tensor.requires_grad_()
            stand_ins.append(tensor)
            index += 1
        lifting.random_source = lambda: packed(lifting.new_input(_KeySource(), (2,), np.uint32))
        given = _detached_buffers(stand_ins, spec)
        tree = jax.tree_util.tree_unflatten(spec, given)
        if not self._arguments_are_leaves:
            params, buffers, *arguments = tree
            tree = (params, buffers, *jax.tree.map(_computed, arguments))
        with self._running.watching():
            result, buffers, state = self._functional.call(tree)
        self._results = Results((result, buffers))
        self._has_buffers = buffers is not None
        tensors, self._results.tensors = self._results.tensors, []
        # A result that is an argument itself has the gradient that comes in.
        tensors = [t.view_as(t) if t.requires_grad and t.is_leaf else t for t in tensors]
        arrays = [read(t.resolve_conj().resolve_neg()) for t in tensors]
        self._n_outputs = len(arrays)
        self.gradient_of: list[int] = []
        self._used_up: dict[int, str] = {}
        with self._functional.standing_in(state):  # checkpoints run parts of the module again
            return arrays + self._trace_gradients(tensors, stand_ins)

    def _trace_gradients(self, tensors: list[torch.Tensor], stand_ins: list[Any]) -> list[Array]:
        carriers = [i for i, t in enumerate(tensors) if has_graph(t)]
        inputs = [t for t in stand_ins if isinstance(t, torch.Tensor)]
        targets = [t for t in inputs if t.requires_grad]
        if not carriers or not targets:
            return []
        found, errors = gradients_of(self._lifting, [tensors[i] for i in carriers], targets)
        self._used_up = {carriers[i]: said for i, said in errors.items()}
        positions = {id(t): i for i, t in enumerate(inputs)}
        pairs = [
            (positions[id(t)], g) for t, g in zip(targets, found, strict=True) if g is not None
        ]
        self._carriers = carriers
        self.gradient_of = [position for position, _ in pairs]
        return [read(g) for _, g in pairs]

    def _with_gradient(
        self, jaxpr: ClosedJaxpr, inputs: list[Any], places: list[Any], count: int
    ) -> Callable[..., Any]:
        incoming_at = {
            i: one.source.slot
            for i, one in enumerate(inputs)
            if isinstance(one.source, IncomingSource)
        }
        slots = list(incoming_at)
        n_gradients = len(self.gradient_of)
        forward, (late,), kept = split(jaxpr, [(slots, n_gradients)], self._n_outputs)
        forward_places = [places[i] for i in kept]
        needed = [self._carriers[slot] for slot in incoming_at.values()]
        n_outputs, gradient_of = self._n_outputs, self.gradient_of
        early, backward = in_64_bits(forward), in_64_bits(late.closed)

        @jax.custom_vjp
        def run(*arrays: Array) -> list[Array]:
            return early(*[arrays[i] for i in forward_places])[:n_outputs]

        def run_forward(*arrays: Array) -> tuple[list[Array], list[Array]]:
            outputs = early(*[arrays[i] for i in forward_places])
            return outputs[:n_outputs], outputs[n_outputs:]

        def run_backward(residuals: list[Array], incoming: Any) -> tuple[Any, ...]:
            # PyTorch's gradient of a complex number is the conjugate of JAX's.
            gradients = backward(*residuals, *[jnp.conj(incoming[i]) for i in needed])
            result: list[Any] = [None] * count
            for position, value in zip(gradient_of, gradients, strict=True):
                result[position] = jnp.conj(value)
            return tuple(result)

        run.defvjp(run_forward, run_backward)
        return run

    def rebuild(self, arrays: list[Array]) -> Any:
        """The result for the program's output arrays."""
        result, buffers = self._results.of(arrays)
        return (result, buffers) if self._has_buffers else result


def _detached_buffers(stand_ins: list[Any], spec: Any) -> list[Any]:
    """The stand-ins, those of buffers without a gradient: modules write them in place."""
    _, buffers, _, _ = jax.tree_util.tree_unflatten(spec, stand_ins)
    for tensor in (buffers or {}).values():
        tensor.requires_grad_(False)
    return stand_ins


def _computed(value: Any) -> Any:
    """A tensor that a function may write to, whose gradient goes through to `value`."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return value
    made = value.clone()
    made.retain_grad()
    return made
