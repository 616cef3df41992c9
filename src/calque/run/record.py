"""Trace a function once: from a Python call to a jaxpr with its inputs, outputs and guards."""

import gc
import math
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import jax
import torch
from jax import Array
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_pre_hook

from calque.device.cell import (
    Cell,
    active,
    cell_of,
    read,
    view_of,
    write,
)
from calque.diagnostics import TraceError
from calque.run import signature
from calque.run.arguments import Arguments
from calque.run.assumptions import Assumed, Assumptions
from calque.run.bystanders import Bystanders
from calque.run.checking import Checks
from calque.run.differentiable import Backward, trace_backward
from calque.run.effects import PythonState, Rebound
from calque.run.guards import CellGuard, GradientGuard, HostGuard, OptimizerGuard
from calque.run.implicit import GradientOf, HeldIn, Implicit
from calque.run.lifting import Input, Lifting, close
from calque.run.naming import names_by_cell
from calque.run.optimizers import OptimizerLending, holders_of
from calque.run.places import Holder, PlaceGuard
from calque.run.reach import Reach
from calque.run.results import Argument, Describer, Description, Existing, Inseparable
from calque.run.shells import opened
from calque.run.signature import is_tensor
from calque.run.sources import Sources
from calque.run.witness import Witness

Target = Existing | Argument


def record(
    fn: Callable[..., Any],
    leaves: list[Any],
    spec: Any,
    checks: bool = False,
    assumptions: Callable[[], Assumptions | None] = lambda: None,
) -> "Recording":
    """Trace a function for the leaves of a call's arguments.

    Args:
        fn: the function.
        leaves, spec: the arguments.
        checks: whether the program is to check values.
        assumptions: gives what a trace may assume.
    """
    with_storage: frozenset[int] = frozenset()
    while True:
        try:
            return Recording(fn, leaves, spec, with_storage, checks, assumptions())
        except Inseparable as error:
            if error.indexes <= with_storage:
                raise
            with_storage |= error.indexes


class Recording:
    """What one trace found.

    Attributes:
        jaxpr: the closed jaxpr; its inputs are `inputs`, its outputs the new values of `written`,
            then the arrays that the descriptions name, then the gradients of `backward`.
        inputs: where each input comes from.
        implicit: what is handed to the program behind the arguments of each call: tensors whose
            place is the same at each call, and not they.
        written: what the function wrote: a cell, or the index of an argument.
        results: the leaves of the result, with `spec` as their container.
        shells: the objects among these leaves, whose tensors `results` has in their stead.
        gradients: the tensors whose `.grad` is another tensor afterwards, and which.
        rebound: places that hold other tensors afterwards, and which.
        survivors: cells made in the trace that outlive it without being any of these.
        count: how many leaves a call's arguments have.
        sharing: how the implicit ones share storages.
        pinned, pinned_hosts: arguments that are also part of the state.
        stored: arguments whose whole storage is the input, and how they must lie in it.
        optimizers: those that stepped.
        checks: the checks of values that were asked for, and of those that were assumed.
        guards: what must hold for the program to serve a call.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        leaves: list[Any],
        spec: Any,
        with_storage: frozenset[int],
        checks: bool,
        assumptions: Assumptions | None,
    ) -> None:
        self.implicit: list[Implicit] = []
        self.flags: list[tuple[torch.Tensor, bool]] = []
        self.rebound: list[tuple[Rebound, list[Description]]] = []
        self.backward: Backward | None = None
        self.checks: Checks | Assumed = Checks()
        trace = _Trace(self, fn, leaves, with_storage, checks, assumptions)
        try:
            self.jaxpr, self.inputs = trace.run(fn, spec)
        except BaseException:
            trace.rollback()
            raise
        trace.finish()


class _Trace:
    """A trace while it runs; what is of use afterwards goes to its recording."""

    def __init__(
        self,
        recording: Recording,
        fn: Callable[..., Any],
        leaves: list[Any],
        with_storage: frozenset[int],
        checks: bool,
        assumptions: Assumptions | None,
    ) -> None:
        self.recording = recording
        self.leaves = leaves
        self.assumptions = assumptions
        self.lifting = Lifting(checks, assumptions)
        self.lending = OptimizerLending(self.lifting)
        self.reach = reach = Reach(fn)
        own = {cell_of(t) for t in reach.tensors.values() if is_tensor(t)}
        self.own_hosts = [t for t in reach.tensors.values() if t.device.type == "cpu"]
        reach.add(leaves, "arguments")
        self.state = PythonState(_without(reach.holders, leaves))
        self.bystanders = Bystanders(reach.foreign)
        self.modules = dict(reach.modules)
        self.tensors: dict[int, torch.Tensor] = {}
        self.before: dict[int, tuple[torch.Tensor | None, bool, torch.Tensor, Cell]] = {}
        for tensor in reach.tensors.values():
            if tensor.is_leaf:
                self._know(tensor)
        self.cpu_random = torch.get_rng_state()
        self.arguments = Arguments(leaves, own, with_storage)
        self.stand_ins = self.arguments.stand_ins
        outside = reach.tensors | {id(t): t for t in self.stand_ins if is_tensor(t)}
        self.witness = Witness(
            self.lifting, self._know, self.arguments.windows.see_operator, outside
        )
        recording.pinned, recording.stored = self.arguments.pinned, self.arguments.stored
        self.free: list[tuple[Holder, Any]] = []
        self.fixed: list[tuple[torch.Tensor, torch.Tensor]] = []

    # The trace ------------------------------------------------------------------------------------

    def run(self, fn: Callable[..., Any], spec: Any) -> tuple[Any, list[Input]]:
        """The closed jaxpr of the function, and where its inputs come from."""
        args, kwargs = signature.unflatten(self.stand_ins, spec)
        with ExitStack() as stack:
            stack.enter_context(self.lifting.activated())
            stack.enter_context(self.lending.installed())
            handle = register_module_forward_pre_hook(self._on_module)
            stack.callback(handle.remove)
            stack.enter_context(self.witness)
            traced = jax.make_jaxpr(lambda: self._body(fn, args, kwargs))()
        return close(traced, self.lifting.inputs)

    def _on_module(self, module: Module, args: Any) -> None:
        if active.trace is self.lifting and module not in self.modules:
            found = Reach(module)
            self.modules.update(found.modules)
            self.reach.names = found.names | self.reach.names
            self.state.holders += found.holders
            for tensor in found.tensors.values():
                if tensor.is_leaf:
                    self._know(tensor)

    def _know(self, tensor: torch.Tensor) -> None:
        """Remember how a leaf tensor was before the function could change it."""
        if id(tensor) in self.tensors or tensor.device.type != "jax":
            return
        self.tensors[id(tensor)] = tensor
        alias = tensor.detach()
        self.before[id(tensor)] = tensor.grad, tensor.requires_grad, alias, cell_of(tensor)

    def _body(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> list[Array]:
        recording = self.recording
        with self.arguments.watched():
            result = fn(*args, **kwargs)
        del args, kwargs
        if self.assumptions is not None:
            self.assumptions.check_met()
        leaves, recording.spec = signature.flatten(result)
        del result
        recording.shells = opened(leaves, self._is_made_here)
        self._undo_data()
        rebound = self.state.collect()
        self.arguments.check_separable(self.lifting.written.keys())
        self._find_implicit(rebound)
        describer = Describer(
            self.lifting,
            self.stand_ins,
            self.witness.handles,
            recording.pinned,
            recording.stored,
            len(self.leaves),
        )
        recording.gradients = self._describe_gradients(describer)
        recording.results = [describer.describe(leaf) for leaf in leaves]
        recording.rebound = [
            (place, [describer.describe(leaf) for leaf in place.after]) for place in rebound
        ]
        for place in rebound:
            place.after.clear()
        self.lending.check_unchanged()
        recording.checks = Checks.of(self.lifting, describer)
        if self.assumptions is not None:
            recording.checks = self.assumptions.checked_by(recording.checks, describer)
        # JAX gives a donated input's memory to the first output of its shape: keep them in step.
        slots = self.lifting.cell_slots
        written = sorted(self.lifting.written, key=lambda cell: slots.get(cell, math.inf))
        made = list(self.lifting.fresh.values())
        recording.backward = trace_backward(
            self.lifting, leaves, recording.results, self.tensors.values(), self.stand_ins
        )
        leaves.clear()
        del rebound
        self.bystanders.forget()  # they would keep alive what the function has let go
        recording.survivors = self._find_survivors(made, describer)
        recording.written = [self.arguments.indexes.get(cell, cell) for cell in written]
        outputs = [self.lifting.values[cell] for cell in written] + describer.arrays
        recording.n_outputs = len(outputs)
        return outputs + (recording.backward.gradients if recording.backward else [])

    def _is_made_here(self, tensor: torch.Tensor) -> bool:
        return is_tensor(tensor) and self.lifting.is_fresh(cell_of(tensor))

    def _undo_data(self) -> None:
        """`p.data = x` and `p.requires_grad_()` in the function: undone, then part of each call."""
        for key, tensor in self.tensors.items():
            _, flag, alias, cell = self.before[key]
            if cell_of(tensor) is not cell:
                if tensor.shape != alias.shape or tensor.dtype != alias.dtype:
                    raise TraceError(
                        f"the data of a tensor of shape {tuple(alias.shape)} from outside is "
                        f"replaced by data of shape {tuple(tensor.shape)} inside calque.jit"
                    )
                value = read(tensor)
                tensor.data = alias
                write(tensor, value)
            if tensor.requires_grad != flag:
                self.recording.flags.append((tensor, tensor.requires_grad))
                tensor.requires_grad_(flag)

    def _find_implicit(self, rebound: list[Rebound]) -> None:
        """Tensors that are handed in anew at each call: those of rebound places, and gradients."""
        known = Counter(cell_of(t) for t in self.reach.tensors.values() if is_tensor(t))
        for place in rebound:
            tensors = [t for t in place.before if is_tensor(t)]
            cells = [cell_of(t) for t in {id(t): t for t in tensors}.values()]
            if (
                tensors
                and all(t.is_leaf and not t.requires_grad and t.grad is None for t in tensors)
                and all(
                    known[cell] == cells.count(cell) and cell not in self.arguments.indexes
                    for cell in cells
                )
            ):
                self.free.append((place.holder, place.key))
                self._add_implicit(HeldIn(place), place.before)
        positions = {id(t): i for i, t in enumerate(self.stand_ins)}
        for key, tensor in self.tensors.items():
            gradient = self.before[key][0]
            if gradient is not None and cell_of(gradient) in self.lifting.values:
                if known[cell_of(gradient)] or cell_of(gradient) in self.arguments.indexes:
                    self.fixed.append((tensor, gradient))
                    continue
                self._add_implicit(GradientOf(self._target(tensor, positions)), [gradient])
        self.recording.sharing = signature.sharing(self.stand_ins[len(self.leaves) :])

    def _add_implicit(self, source: Implicit, tensors: list[Any]) -> None:
        source.expect(tensors)
        self.recording.implicit.append(source)
        for tensor in tensors:
            if is_tensor(tensor):
                self.arguments.indexes.setdefault(cell_of(tensor), len(self.stand_ins))
            self.stand_ins.append(tensor)

    def _target(self, tensor: torch.Tensor, positions: dict[int, int]) -> Target:
        index = positions.get(id(tensor))
        pinned = index is None or index in self.recording.pinned
        return Existing(tensor) if pinned else Argument(index)

    def _describe_gradients(self, describer: Describer) -> list[tuple[Target, Description | None]]:
        effects: list[tuple[Target, Description | None]] = []
        positions = {id(t): i for i, t in enumerate(self.stand_ins)}
        for key, tensor in self.tensors.items():
            before, after = self.before[key][0], tensor.grad
            if after is not before:
                described = None if after is None else describer.describe(after)
                effects.append((self._target(tensor, positions), described))
                tensor.grad = before
        for index, leaf in enumerate(self.leaves):
            stand_in = self.stand_ins[index]
            if stand_in is not leaf and getattr(stand_in, "grad", None) is not None:
                if not leaf.is_leaf:
                    raise TraceError(
                        f"backward() inside calque.jit reaches argument {index}, which was "
                        "computed outside with requires_grad: detach it, or compute it inside"
                    )
                effects.append((Argument(index), describer.describe(stand_in.grad)))
                stand_in.grad = None
        return effects

    def _find_survivors(self, made: list[Any], describer: Describer) -> list[tuple[Cell, int]]:
        if any(ref() is not None for ref in made):
            gc.collect()
        alive = [cell for ref in made if (cell := ref()) is not None]
        return [(cell, describer.add(cell.array)) for cell in alive]

    def rollback(self) -> None:
        """Leave everything as it was before the trace."""
        for key, tensor in self.tensors.items():
            gradient, flag, alias, cell = self.before[key]
            if cell_of(tensor) is not cell:
                tensor.data = alias
            if tensor.requires_grad != flag:
                tensor.requires_grad_(flag)
            if tensor.grad is not gradient:
                tensor.grad = gradient
        self.lending.rollback()
        self.state.restore()
        self.bystanders.restore()
        torch.set_rng_state(self.cpu_random)

    # Afterwards -----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Fill the recording; forget the tensors of this one call."""
        recording = self.recording
        recording.count = len(self.leaves)
        recording.draws = self.lifting.draws
        recording.seeded = self.lifting.final_random()
        recording.effects = self.state.effects
        gradients = {key: before[0] for key, before in self.before.items()}
        names = names_by_cell(self.reach, list(self.lending.optimizers), gradients)
        sources = Sources(self.leaves, self.arguments, self.own_hosts)
        for one in recording.inputs:
            sources.place(one, names, self.reach.names)
        recording.pinned_hosts = sources.pinned_hosts
        recording.handles = {
            cell: tensor
            for cell, tensor in self.witness.handles.items()
            if cell not in self.arguments.indexes
        }
        positions = {id(t): i for i, t in enumerate(self.stand_ins)}
        if recording.backward is not None:
            recording.backward.receivers = [
                self._target(t, positions) for t in recording.backward.targets
            ]
            recording.backward.forget()
        given = {id(t) for i, t in enumerate(self.leaves) if i not in recording.pinned}
        recording.guards = self._guards(given | positions.keys())

    def _guards(self, positions: set[int]) -> list[Any]:
        """The guards of the program, cheapest first."""
        known = [(t, key) for key, t in self.tensors.items() if key not in positions]
        state = {i.source for i in self.recording.inputs if i.kind == "cell"}
        optimizers = list(self.lending.optimizers)
        holders = self.state.holders + [h for o in optimizers for h in holders_of(o)]
        handles = [
            (t, cell, view_of(alias))
            for t, key in known
            for _, _, alias, cell in (self.before[key],)
            if cell in state
        ]
        guards: list[Any] = [
            GradientGuard(
                [t for t, _ in known],
                [self.before[key][0] is not None for _, key in known],
                self.fixed,
            ),
            CellGuard(handles),
            PlaceGuard(holders, self.free),
        ]
        self.recording.optimizers = optimizers
        if optimizers:
            guards.append(OptimizerGuard(optimizers, self.lending.watch))
        if self.witness.looked_at:
            hosts = {id(t): i for i, t in enumerate(self.leaves) if isinstance(t, torch.Tensor)}
            guards.append(HostGuard((t, hosts.get(id(t))) for t in self.witness.looked_at.values()))
        return guards


def _without(holders: list[Holder], leaves: list[Any]) -> list[Holder]:
    """The holders other than the list of arguments itself."""
    return [holder for holder in holders if holder.container is not leaves]
