"""Trace a function once: from a Python call to a jaxpr with its inputs, outputs and guards."""

import gc
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import jax
import torch
from jax import Array
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_pre_hook

from calque.device.cell import Cell, active, cell_of, is_whole, read, wrap
from calque.run import signature
from calque.run.differentiable import Backward, trace_backward
from calque.run.effects import PythonState
from calque.run.guards import GradientGuard, HostGuard, ModuleGuard, OptimizerGuard, ScalarGuard
from calque.run.lifting import Lifting, close
from calque.run.optimizers import OptimizerLending
from calque.run.reach import Reach
from calque.run.results import Argument, Describer, Description, Existing
from calque.run.witness import Witness
from calque.diagnostics import TraceError


class Recording:
    """What one trace found.

    Attributes:
        jaxpr, inputs: the closed jaxpr and where each of its inputs comes from; its outputs the new values of `written`,
            then the arrays that the descriptions name, then the gradients of `backward`.
        arguments: for each cell that is an argument of the call, the index of its leaf.
        written: cells from outside that the function wrote.
        gradients: the tensors whose `.grad` is another tensor afterwards, and which.
        survivors: cells made in the trace that outlive it without being returned.
    """

    def __init__(self, fn: Callable[..., Any], leaves: list[Any], spec: Any) -> None:
        self.leaves = leaves
        self.lifting = Lifting()
        self.lending = OptimizerLending(self.lifting)
        self.witness = Witness(self.lifting)
        reach = Reach(fn)
        self.own = _cells_within(reach)
        reach.visit(leaves, 4)
        self.state = PythonState(_modules_within(reach))
        self.module_guard = ModuleGuard(self.state.modules)
        self.scalar_guard = ScalarGuard(reach.scalars)
        self.tensors = _leaf_tensors(reach)
        self.before = {key: tensor.grad for key, tensor in self.tensors.items()}
        self.arguments: dict[Cell, int] = {}
        self.pinned: list[tuple[int, Cell]] = []
        self.stand_ins = [self._stand_in(i, leaf) for i, leaf in enumerate(leaves)]
        self.called: dict[Module, None] = {}
        self.late_guards: list[ModuleGuard] = []
        self.backward: Backward | None = None
        try:
            self._trace(fn, spec)
        except BaseException:
            self._rollback()
            raise
        self.state.changed()

    # Arguments ------------------------------------------------------------------------------------

    def _stand_in(self, index: int, leaf: Any) -> Any:
        """What the function is given for an argument: itself, unless it is a view of something."""
        if not isinstance(leaf, torch.Tensor) or leaf.device.type != "jax":
            return leaf
        cell = cell_of(leaf)
        if cell in self.own:
            self.pinned.append((index, cell))
            return leaf
        if is_whole(cell, leaf) and leaf.is_leaf:
            self.arguments.setdefault(cell, index)
            return leaf
        copy = wrap(read(leaf)).requires_grad_(leaf.requires_grad)
        self.arguments[cell_of(copy)] = index
        return copy

    # The trace ------------------------------------------------------------------------------------

    def _trace(self, fn: Callable[..., Any], spec: Any) -> None:
        args, kwargs = signature.unflatten(self.stand_ins, spec)
        with ExitStack() as stack:
            stack.enter_context(self.lifting.activated())
            stack.enter_context(self.lending.installed())
            handle = register_module_forward_pre_hook(self._on_module)
            stack.callback(handle.remove)
            stack.enter_context(self.witness)
            traced = jax.make_jaxpr(lambda: self._body(fn, args, kwargs))()
        self.jaxpr, self.inputs = close(traced, self.lifting.inputs)

    def _on_module(self, module: Module, args: Any) -> None:
        if active.trace is self.lifting and module not in self.state.known:
            self.late_guards.append(ModuleGuard(self.state.watch(module)))
            for parameter in module.parameters():
                self._know(parameter)

    def _know(self, tensor: torch.Tensor) -> None:
        if id(tensor) not in self.tensors and tensor.device.type == "jax":
            self.tensors[id(tensor)] = tensor
            self.before[id(tensor)] = tensor.grad

    def _body(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> list[Array]:
        result = fn(*args, **kwargs)
        leaves, self.spec = signature.flatten(result)
        del result
        for tensor in list(self.witness.leaves.values()):
            self._know(tensor)
        describer = Describer(self.lifting, self.stand_ins, self.witness.handles)
        self.gradients = self._describe_gradients(describer)
        self.results: list[Description] = [describer.describe(leaf) for leaf in leaves]
        self.lending.check_unchanged()
        self.written = list(self.lifting.written)
        self.backward = trace_backward(
            self.lifting, leaves, self.results, self.tensors.values(), self.stand_ins
        )
        leaves.clear()
        self.survivors = self._find_survivors(describer)
        outputs = [self.lifting.values[cell] for cell in self.written] + describer.arrays
        self.n_outputs = len(outputs)
        return outputs + (self.backward.gradients if self.backward else [])

    def _describe_gradients(
        self, describer: Describer
    ) -> list[tuple[Existing | Argument, Description | None]]:
        effects: list[tuple[Existing | Argument, Description | None]] = []
        positions = {id(t): i for i, t in enumerate(self.stand_ins) if isinstance(t, torch.Tensor)}
        for key, tensor in self.tensors.items():
            before, after = self.before[key], tensor.grad
            if after is before:
                continue
            target = Argument(positions[key]) if key in positions else Existing(tensor)
            effects.append((target, None if after is None else describer.describe(after)))
            tensor.grad = before
        for index, (leaf, stand_in) in enumerate(zip(self.leaves, self.stand_ins, strict=True)):
            if stand_in is not leaf and getattr(stand_in, "grad", None) is not None:
                if not leaf.is_leaf:
                    raise TraceError(
                        f"backward() inside calque.jit reaches argument {index}, which was computed "
                        "outside with requires_grad: detach it, or compute it inside"
                    )
                effects.append((Argument(index), describer.describe(stand_in.grad)))
        return effects

    def _find_survivors(self, describer: Describer) -> list[tuple[Cell, int]]:
        if any(ref() is not None for ref in self.lifting.fresh.values()):
            gc.collect()
        alive = [cell for ref in self.lifting.fresh.values() if (cell := ref()) is not None]
        return [(cell, describer.add(cell.array)) for cell in alive]

    def _rollback(self) -> None:
        for key, tensor in self.tensors.items():
            if tensor.grad is not self.before[key]:
                tensor.grad = self.before[key]
        self.lending.rollback()
        self.state.restore()

    # Guards ---------------------------------------------------------------------------------------

    def guards(self) -> list[Any]:
        """The guards of the program, cheapest first."""
        positions = {id(t) for t in self.stand_ins if isinstance(t, torch.Tensor)}
        known = [(t, self.before[key]) for key, t in self.tensors.items() if key not in positions]
        guards: list[Any] = [
            self.module_guard,
            *self.late_guards,
            GradientGuard([t for t, _ in known], [g is not None for _, g in known]),
        ]
        if self.lending.optimizers:
            guards.append(OptimizerGuard(self.lending.optimizers, self.lending.watch))
        if self.scalar_guard.rows:
            guards.append(self.scalar_guard)
        if self.witness.looked_at:
            guards.append(HostGuard(self.witness.looked_at.values()))
        return guards


def _modules_within(reach: Reach) -> list[Module]:
    found: dict[Module, None] = {}
    for module in reach.modules:
        found.update(dict.fromkeys(module.modules()))
    return list(found)


def _leaf_tensors(reach: Reach) -> dict[int, torch.Tensor]:
    found = {key: t for key, t in reach.tensors.items() if t.is_leaf}
    for module in reach.modules:
        found.update((id(p), p) for p in module.parameters())
    for optimizer in reach.optimizers:
        for group in optimizer.param_groups:
            found.update((id(p), p) for p in group["params"])
    return {key: t for key, t in found.items() if t.device.type == "jax"}


def _cells_within(reach: Reach) -> set[Cell]:
    tensors = list(reach.tensors.values())
    for module in reach.modules:
        tensors += [*module.parameters(), *module.buffers()]
    for optimizer in reach.optimizers:
        tensors += [p for group in optimizer.param_groups for p in group["params"]]
    return {cell_of(t) for t in tensors if t.device.type == "jax"}
