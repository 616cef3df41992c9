"""Calls a functional module on traced tensors, and computes its results and their gradients."""

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import torch
from jax import Array

from calque.device.memory.cell import Cell, read
from calque.device.memory.wrapping import wrap
from calque.interop.functional_arguments import is_array, packed
from calque.interop.functional_results import FlatResults
from calque.program.gradients.differentiable import gradients_of
from calque.program.gradients.graph_boundary import has_graph
from calque.program.lifting import Lifting
from calque.program.sources import ArgumentSource, KeySource
from calque.state import Running

if TYPE_CHECKING:
    from calque.interop.functional import Functional


class Pure(Lifting):
    """Lifts nothing: values that are not arguments of a pure function are constants."""

    def read(self, cell: Cell) -> Array:
        """Returns the value of a cell; for one created before the trace, its current value."""
        if self.is_fresh(cell) or cell in self.values or isinstance(cell.array, jax.core.Tracer):
            return super().read(cell)
        return cell.array

    def constant(self, tensor: torch.Tensor) -> Array:
        """Returns the current value of a CPU tensor."""
        return self._host_constant(tensor)


class FunctionalCall:
    """A call in a trace (see the module).

    Args:
        functional: the module.
        lifting: the trace.
        running: records its reads of Python's state, if necessary.
        arguments_are_leaves: as for `functional_trace.FunctionalTrace`.

    Attributes:
        results: the flattened result.
        has_buffers: whether it contains the new buffers.
        n_outputs: its number of arrays.
        carriers: which of these have an incoming gradient.
        gradient_of: the arguments that gradients reach, in the order of the gradients.
        used_up: the results whose graph was already freed: PyTorch's message by position.
    """

    def __init__(
        self,
        functional: "Functional",
        lifting: Lifting,
        running: Running | None,
        arguments_are_leaves: bool,
    ) -> None:
        self._functional = functional
        self._lifting = lifting
        self._running = running
        self._arguments_are_leaves = arguments_are_leaves
        self.carriers: list[int] = []
        self.gradient_of: list[int] = []
        self.used_up: dict[int, str] = {}

    def run(self, leaves: list[Any], spec: Any) -> list[Array]:
        """Returns the arrays of the result, followed by the gradients."""
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
        lifting.random_source = lambda: packed(lifting.new_input(KeySource(), (2,), np.uint32))
        given = _detached_buffers(stand_ins, spec)
        tree = jax.tree_util.tree_unflatten(spec, given)
        if not self._arguments_are_leaves:
            params, buffers, *arguments = tree
            tree = (params, buffers, *jax.tree.map(_computed, arguments))
        with nullcontext() if self._running is None else self._running.watching():
            result, buffers, state = self._functional.call(tree)
        self.results: FlatResults = FlatResults((result, buffers))
        self.has_buffers: bool = buffers is not None
        tensors, self.results.tensors = self.results.tensors, []
        # The gradient of a result that is itself an argument is the incoming one.
        tensors = [t.view_as(t) if t.requires_grad and t.is_leaf else t for t in tensors]
        arrays = [read(t.resolve_conj().resolve_neg()) for t in tensors]
        self.n_outputs: int = len(arrays)
        with self._functional.standing_in(state):  # checkpoints rerun parts of the module
            return arrays + self._trace_gradients(tensors, stand_ins)

    def _trace_gradients(self, tensors: list[torch.Tensor], stand_ins: list[Any]) -> list[Array]:
        carriers = [i for i, t in enumerate(tensors) if has_graph(t)]
        inputs = [t for t in stand_ins if isinstance(t, torch.Tensor)]
        targets = [t for t in inputs if t.requires_grad]
        if not carriers or not targets:
            return []
        found, errors = gradients_of(self._lifting, [tensors[i] for i in carriers], targets)
        self.used_up = {carriers[i]: said for i, said in errors.items()}
        positions = {id(t): i for i, t in enumerate(inputs)}
        pairs = [
            (positions[id(t)], g) for t, g in zip(targets, found, strict=True) if g is not None
        ]
        self.carriers = carriers
        self.gradient_of = [position for position, _ in pairs]
        return [read(g) for _, g in pairs]


def _detached_buffers(stand_ins: list[Any], spec: object) -> list[Any]:
    """Returns the traced members, with buffers detached, because modules write to them in place."""
    _, buffers, _, _ = jax.tree_util.tree_unflatten(spec, stand_ins)
    for tensor in (buffers or {}).values():
        tensor.requires_grad_(False)
    return stand_ins


def _computed(value: object) -> Any:
    """Returns a tensor that a function may write to, whose gradient flows to `value`."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return value
    made = value.clone()
    made.retain_grad()
    return made
