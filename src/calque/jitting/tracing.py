"""Trace a function once: from a Python call to a jaxpr with its inputs, outputs and guards."""

import gc
import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import jax
import torch
from jax import Array
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import is_lazy

from calque.device.memory.cell import Cell, active, cell_of, read
from calque.device.runtime.interrupts import settles
from calque.device.runtime.placement import placements_of
from calque.errors import TraceError, noting_refusals
from calque.jitting.always_called import refusal
from calque.jitting.arguments import Arguments
from calque.jitting.assumed_values import Assumptions
from calque.jitting.descriptions import Describer
from calque.jitting.finding_implicit import ImplicitFinder, target_of
from calque.jitting.guards import (
    OptimizerGuard,
)
from calque.jitting.histories import Histories, without_saved_hooks
from calque.jitting.host_tensors import Witness
from calque.jitting.input_names import names_by_cell
from calque.jitting.input_sources import SourceFinder, state_of
from calque.jitting.known_tensors import KnownTensors
from calque.jitting.modes import Modes, function_modes
from calque.jitting.object_results import opened
from calque.jitting.optimizers import OptimizerLending
from calque.jitting.python_effects import PythonState
from calque.jitting.reachable import Reach
from calque.jitting.recording import Recording, Target
from calque.jitting.returned_containers import Containers
from calque.jitting.state_arguments import Apart, Overlap, apart_of, with_own
from calque.jitting.trace_guards import guards_of_calls, guards_of_state
from calque.program import signature
from calque.program.gradients.border import Edge, has_graph
from calque.program.gradients.carrying import Carriers
from calque.program.gradients.derivatives import Step, derive
from calque.program.gradients.differentiable import Surroundings, trace_backward
from calque.program.gradients.saved_values import watch
from calque.program.lifting import Input, Lifting, close, late_equations
from calque.program.results import Argument, Description, Fresh, Inseparable
from calque.program.signature import is_tensor
from calque.program.unread import Restructure, is_unread, watching_objects
from calque.program.value_checks import Checks
from calque.state import Running, Snapshot


def record(
    fn: Callable[..., Any],
    leaves: list[Any],
    spec: Any,
    checks: bool = False,
    assumptions: Callable[[], Assumptions | None] = lambda: None,
    path: tuple[Step, ...] = (),
    given: Any = None,
) -> Recording:
    """Trace a function for the leaves of a call's arguments.

    Args:
        fn: the function.
        leaves, spec: the arguments.
        checks: whether the program is to check values.
        assumptions: gives what a trace may assume.
        path: which gradients the program is to give, in place of what the function gives.
        given: the call's (args, kwargs).
    """
    with_storage: frozenset[int] = frozenset()
    own: frozenset[Any] = frozenset()
    while True:
        try:
            return _traced(fn, leaves, spec, with_storage, checks, assumptions(), path, given, own)
        except Overlap as error:
            if error.places <= own:
                raise TraceError(
                    "an argument is a container that the function reaches by itself, too, and "
                    "changes, and the tensors in it cannot be told from others: pass a copy"
                ) from None
            own |= error.places
        except Inseparable as error:
            if error.indexes <= with_storage:
                raise
            with_storage |= error.indexes


class Unshaped(BaseException):
    """Parameters have no shapes yet: a call that runs eagerly gives them theirs."""


def _traced(
    fn: Callable[..., Any],
    leaves: list[Any],
    spec: Any,
    with_storage: frozenset[int],
    checks: bool,
    assumptions: Assumptions | None,
    path: tuple[Step, ...],
    given: Any,
    own: frozenset[Any],
) -> Recording:
    recording = Recording()
    trace = _Trace(recording, fn, leaves, with_storage, checks, assumptions, path)
    trace.given, trace.own_containers = given, own
    try:
        recording.jaxpr, recording.inputs = trace.run(fn, spec)
    except BaseException as error:
        refused = refusal(error, trace.modules)
        trace.rollback()
        if refused is not None:
            raise refused from error
        raise
    if path:
        trace.rollback()
        trace.place_inputs()
    else:
        trace.finish()
    return recording


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
        path: tuple[Step, ...],
    ) -> None:
        self.path = path
        self.recording = recording
        self.leaves = leaves
        self.assumptions = assumptions
        self.lifting = Lifting(checks, assumptions)
        self.lending = OptimizerLending(self.lifting)
        self.reach = reach = Reach(fn)
        if any(map(is_lazy, reach.tensors.values())):
            raise Unshaped
        own = {cell_of(t) for t in reach.tensors.values() if is_tensor(t)}
        self.own_hosts = [t for t in reach.tensors.values() if t.device.type == "cpu"]
        self.own_tensors = dict(reach.tensors)
        reach.add([leaf for leaf in leaves if not is_unread(leaf)], "arguments")
        self.modes = Modes()
        self.state = PythonState(Snapshot(fn, *function_modes()))
        for index, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor):
                if not is_unread(leaf):
                    self.state.snapshot.visit(leaf, f"arguments[{index}]")
                continue
            for name, value in vars(leaf).items():
                self.state.snapshot.visit(value, f"arguments[{index}].{name}")
        self.lending.own_numbers = self.state.numbers.own
        self.lending.codes = self.state.snapshot.codes
        self.lending.on_prepared = self._on_prepared
        self.modules = dict(reach.modules)
        self.histories = Histories()
        self.known = KnownTensors(self.histories)
        for tensor in reach.tensors.values():
            self.known.know(tensor)
        self.cpu_random = torch.get_rng_state()
        self.arguments = Arguments(leaves, own, with_storage)
        self.stand_ins = self.arguments.stand_ins
        self.histories.know_arguments(self.stand_ins)
        outside = reach.tensors | {id(t): t for t in self.stand_ins if is_tensor(t)}
        self.witness = Witness(self.lifting, self._on_tensor, self._on_operator, outside)
        self.lending.on_count = self.witness.see
        recording.pinned, recording.stored = self.arguments.pinned, self.arguments.stored
        self.given: Any = None
        self.own_containers: frozenset[Any] = frozenset()
        self.spec: Any = None
        self.implicit = ImplicitFinder(self.state, self.known, self.arguments, self.lifting.values)
        self.apart: Apart | None = None

    # The trace ------------------------------------------------------------------------------------

    def run(self, fn: Callable[..., Any], spec: Any) -> tuple[Any, list[Input]]:
        """The closed jaxpr of the function, and where its inputs come from."""
        self.spec = spec
        args, kwargs = signature.unflatten(self.stand_ins, spec)
        if self.own_containers:
            args, kwargs = with_own((args, kwargs), self.own_containers, self.given)
            if any(a is not b for a, b in zip(self.stand_ins, self.leaves)):
                raise Overlap(self.own_containers)
            self.state.unrepeatable.append("an argument is part of the function's state")
        self.state.expect_arguments(args, kwargs, self.own_containers)
        with ExitStack() as stack:
            stack.enter_context(self.lifting.activated())
            stack.enter_context(without_saved_hooks())
            stack.enter_context(self.lending.installed())
            handle = register_module_forward_pre_hook(self._on_module)
            stack.callback(handle.remove)
            stack.enter_context(self.witness)
            traced = jax.make_jaxpr(lambda: self._body(fn, args, kwargs))()
        self.late = late_equations(traced, self.lifting.inputs)
        return close(traced, self.lifting.inputs)

    def _on_module(self, module: Module, args: Any) -> None:
        if active.trace is self.lifting and module not in self.modules:
            found = Reach(module)
            if any(map(is_lazy, found.tensors.values())):
                raise Unshaped
            self.modules.update(found.modules)
            self.reach.names = found.names | self.reach.names
            for tensor in found.tensors.values():
                self._on_tensor(tensor)

    def _on_tensor(self, tensor: torch.Tensor) -> None:
        if tensor.is_leaf or self.histories.is_older(tensor):
            self.known.know(tensor)

    def _on_operator(self, func: Any, args: Any, kwargs: Any) -> None:
        self.arguments.windows.see_operator(func, args, kwargs)
        self.histories.check_operator(func, args, kwargs)

    def _on_prepared(self, optimizer: Any, made: list[tuple[Any, Any]]) -> None:
        self.state.snapshot.visit(optimizer, type(optimizer).__name__)
        optimizer._opt_called = True  # what a scheduler looks at before it warns
        self.state.made(vars(optimizer), "_opt_called")
        for container, key in made:
            self.state.made(container, key)
        self.state.numbers.leave_out(optimizer.param_groups)

    def _body(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> list[Array]:
        recording = self.recording
        running = Running(self.state.snapshot, self.witness.read)
        with (
            watching_objects() as touched,
            self.arguments.watched(),
            noting_refusals() as refusals,
            running.watching(),
        ):
            result = fn(*args, **kwargs)
        if touched:
            raise Restructure(touched=touched)
        del args, kwargs
        if self.assumptions is not None:
            self.assumptions.check_met()
        if refusals:  # the function has caught it
            raise refusals[0]
        outside = {id(row.owner) for row in self.state.snapshot.rows.values()}
        kept = self.state.look()
        containers = Containers(result, outside, self.state.given, kept)
        leaves, recording.spec = containers.flatten(result)
        del result
        recording.shells = opened(leaves, self._is_made_here, kept.union(self.state.given))
        self.known.forget_aliases(self._outside())
        flags = self.known.undo_data()
        recording.modes = self.modes.changed()
        rebound = self.state.collect(id(leaf) for leaf in leaves if id(leaf) in kept)
        self.apart = apart_of(
            self.state, self.given, self.spec, self.leaves, self.own_containers, self.own_tensors
        )
        self.arguments.check_separable(self.lifting.written.keys())
        self.implicit.find(rebound, self._reached())
        recording.implicit = [source for source, _ in self.implicit.found]
        recording.sharing = signature.sharing(self.stand_ins[len(self.leaves) :])
        describer = Describer(
            self.lifting,
            self.stand_ins,
            self.witness.handles,
            self._reached(),
            recording.pinned,
            recording.stored,
            len(self.leaves),
            self.state.template,
        )
        recording.gradients = self._describe_gradients(describer)
        recording.results = [containers.describe(leaf, describer) for leaf in leaves]
        describe = self.state.describing(describer.describe)
        recording.rebound = [(place, list(map(describe, place.after))) for place in rebound]
        for place in rebound:
            place.after.clear()
        recording.effects = self.state.described(describer.describe, containers.kept)
        containers.kept.clear()
        recording.unrepeatable = self.state.unrepeatable
        positions = {id(t): i for i, t in enumerate(self.stand_ins)}
        recording.rewritten = [
            describer.rewritten(tensor, self._target(tensor, positions))
            for tensor in self.histories.changed()
        ]
        recording.flags = [(self._target(tensor, positions), flag) for tensor, flag in flags]
        self.lending.check_unchanged(running)
        self.state.numbers.compare_read(self.lending.in_steps)
        recording.checks = Checks.of(self.lifting, describer)
        if self.assumptions is not None:
            recording.checks = self.assumptions.checked_by(recording.checks, describer)
        # JAX gives a donated input's memory to the first output of its shape: keep them in step.
        slots = self.lifting.cell_slots
        written = sorted(self.lifting.written, key=lambda cell: slots.get(cell, math.inf))
        made = list(self.lifting.fresh.values())
        describer.settle()
        border = self.histories.border
        around = Surroundings(border, border.tensors, self._placing(positions, describer))
        if self.path:
            return self._derive(describer, around)
        ran = len(self.state.snapshot.codes)
        with running.watching():  # what the backward reads is read in the trace
            recording.backward = trace_backward(self.lifting, describer.carriers.found, around)
        if recording.backward is not None:
            self.state.check_backward(ran)
        self.histories.restore()
        self.known.aliases.clear()
        self.made = describer.forget()
        leaves.clear()
        del rebound
        recording.survivors = self._find_survivors(made, describer)
        recording.written = [self.arguments.indexes.get(cell, cell) for cell in written]
        recording.placements = placements_of([cell.array for cell in written])
        outputs = [self.lifting.values[cell] for cell in written] + describer.arrays
        recording.n_outputs = len(outputs)
        return outputs + (recording.backward.gradients if recording.backward else [])

    def _derive(self, describer: Describer, around: Surroundings) -> list[Array]:
        """The gradients of a path, which are all that the program is to give."""
        recording = self.recording
        tensors = [carrier.tensor for carrier in describer.carriers.found]
        derived = derive(self.lifting, tensors, around, self.path)
        recording.results = []
        carriers = Carriers()
        for index, gradient in enumerate(derived.gradients):
            bare = Fresh(index, None, None, gradient.dtype)
            recording.results.append(carriers.add(gradient, bare) if has_graph(gradient) else bare)
        carriers.number()
        recording.backward = trace_backward(self.lifting, carriers.found, derived.around)
        recording.written, recording.placements = [], []
        outputs = [read(gradient) for gradient in derived.gradients]
        recording.n_outputs = len(outputs)
        return outputs + (recording.backward.gradients if recording.backward else [])

    def _placing(
        self, positions: dict[int, int], describer: Describer
    ) -> Callable[[Edge], Description | None]:
        """Where each call finds a tensor that gradients reach; None if it does not outlive it."""
        tensors = self.histories.border.tensors

        def place(edge: Edge) -> Description | None:
            tensor = tensors.get(edge)
            tensor = edge[0].variable if tensor is None else tensor
            found = describer.leaf(tensor)
            if found is None and not (
                self._is_made_here(tensor) or id(tensor) in self.known.aliases
            ):
                found = self._target(tensor, positions)
            return found

        return place

    def _is_made_here(self, tensor: torch.Tensor) -> bool:
        return is_tensor(tensor) and self.lifting.is_fresh(cell_of(tensor))

    def _reached(self) -> dict[int, torch.Tensor]:
        """All tensors that the function reaches by itself, by id."""
        return self.reach.tensors | self.state.snapshot.tensors

    def _outside(self) -> dict[int, torch.Tensor]:
        """Those, and the arguments."""
        return self._reached() | {id(t): t for t in (*self.stand_ins, *self.leaves)}

    def _target(self, tensor: torch.Tensor, positions: dict[int, int]) -> Target:
        return target_of(tensor, positions, self.recording.pinned)

    def _describe_gradients(self, describer: Describer) -> list[tuple[Target, Description | None]]:
        effects: list[tuple[Target, Description | None]] = []
        positions = {id(t): i for i, t in enumerate(self.stand_ins)}
        for key, tensor in self.known.tensors.items():
            if not (tensor.is_leaf or tensor.retains_grad):
                continue  # it was written in place: PyTorch warns of who asks for its gradient
            before, after = self.known.before[key].gradient, tensor.grad
            if after is not before:
                described = None if after is None else describer.describe(after)
                effects.append((self._target(tensor, positions), described))
                tensor.grad = before
        for index, leaf in enumerate(self.leaves):
            stand_in = self.stand_ins[index]
            is_leaf = isinstance(leaf, torch.Tensor) and leaf.is_leaf
            if is_leaf and stand_in is not leaf and stand_in.grad is not None:
                effects.append((Argument(index), describer.describe(stand_in.grad)))
                stand_in.grad = None
        passed = self.histories.passed(self.leaves, lambda t: id(t) in self.known.tensors)
        self.recording.passed = [
            (Argument(index), describer.describe(gradient), kept)
            for index, gradient, kept in passed
        ]
        return effects

    def _find_survivors(self, made: list[Any], describer: Describer) -> list[tuple[Cell, int]]:
        if any(ref() is not None for ref in made):
            gc.collect()
        alive = [cell for ref in made if (cell := ref()) is not None]
        return [(cell, describer.add(cell.array)) for cell in alive]

    @settles
    def rollback(self) -> None:
        """Leave everything as it was before the trace."""
        self.histories.restore()
        self.known.restore()
        self.modes.restore()
        try:
            self.state.restore()  # with what was prepared for optimizers, which goes next
        finally:
            self.lending.rollback()
        torch.set_rng_state(self.cpu_random)

    # Afterwards -----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Fill the recording; forget the tensors of this one call."""
        recording = self.recording
        for source, tensors in self.implicit.found:  # now that the tensors are as they were
            source.expect(tensors)
        recording.count = len(self.leaves)
        recording.draws = self.lifting.draws
        recording.seeded = self.lifting.final_random()
        optimizers = list(self.lending.optimizers)
        names = names_by_cell(self.reach, optimizers, self.known.gradients())
        pinned_hosts = self.place_inputs(names)
        recording.handles = {
            cell: tensor
            for cell, tensor in self.witness.handles.items()
            if cell not in self.arguments.indexes
        }
        positions = {id(t): i for i, t in enumerate(self.stand_ins)}
        if recording.backward is not None:
            watch(recording, self.late, self.made)
        given = {id(t) for i, t in enumerate(self.leaves) if i not in recording.pinned}
        recording.optimizers = optimizers
        recording.guards = guards_of_state(
            self.known,
            given | positions.keys(),
            state_of(recording.inputs),
            self.implicit,
            self.state.snapshot,
            OptimizerGuard(optimizers, self.lending.watch) if optimizers else None,
        )
        recording.call_guards = guards_of_calls(
            self.leaves, self.witness.looked_at.values(), self.apart, recording, pinned_hosts
        )

    def place_inputs(self, names: dict[Cell, str] | None = None) -> list[tuple[int, torch.Tensor]]:
        """Tell the program's inputs from each other; gives the CPU tensors that are two things."""
        finder = SourceFinder(self.leaves, self.arguments, self.own_hosts)
        for one in self.recording.inputs:
            finder.find(one, names or {}, self.reach.names)
        return finder.pinned_hosts
