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
from torch.nn.parameter import is_lazy

from calque.device.memory.cell import Cell, active, cell_of, read, view_of, write
from calque.device.runtime.interrupts import settles
from calque.errors import TraceError, noting_refusals
from calque.jitting.always_called import refusal
from calque.jitting.arguments import Arguments
from calque.jitting.assumed_values import Assumed, Assumptions
from calque.jitting.descriptions import Describer
from calque.jitting.guards import CellGuard, GradientGuard, HostGuard, OptimizerGuard
from calque.jitting.histories import Histories, without_saved_hooks
from calque.jitting.host_tensors import Witness
from calque.jitting.implicit_arguments import GradientOf, HeldIn, Implicit, is_hooked
from calque.jitting.input_names import names_by_cell
from calque.jitting.input_sources import SourceFinder, state_of
from calque.jitting.modes import Modes, ambient, function_modes
from calque.jitting.object_results import opened
from calque.jitting.objects import Distinct
from calque.jitting.optimizers import OptimizerLending
from calque.jitting.python_effects import Effects, PythonState, Rebound
from calque.jitting.reachable import Reach
from calque.jitting.returned_containers import Containers
from calque.jitting.state_arguments import Apart, Overlap, overlapping, with_own
from calque.program import signature
from calque.program.gradients.border import Edge, has_graph
from calque.program.gradients.carrying import Attached, Carriers
from calque.program.gradients.derivatives import Step, derive
from calque.program.gradients.differentiable import Backward, Surroundings, trace_backward
from calque.program.gradients.saved_values import watch
from calque.program.lifting import Input, Lifting, close, late_equations
from calque.program.results import Argument, Description, Existing, Fresh, Inseparable
from calque.program.signature import is_tensor
from calque.program.structures import Structure
from calque.program.unread import Restructure, is_unread, watching_objects
from calque.program.value_checks import Checks
from calque.state import ATOMIC, Row, Running, Snapshot, StateGuard, weakened

Target = Existing | Argument


def record(
    fn: Callable[..., Any],
    leaves: list[Any],
    spec: Any,
    checks: bool = False,
    assumptions: Callable[[], Assumptions | None] = lambda: None,
    path: tuple[Step, ...] = (),
    given: Any = None,
) -> "Recording":
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
            return Recording(
                fn, leaves, spec, with_storage, checks, assumptions(), path, given, own
            )
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


def _is_plain(value: Any) -> bool:
    return type(value) in ATOMIC


class Unshaped(BaseException):
    """Parameters have no shapes yet: a call that runs eagerly gives them theirs."""


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
        effects: what else the function changes in Python.
        unrepeatable: why the program serves this call only, in words; empty if it serves others.
        rewritten: tensors from outside that have another history afterwards, and which.
        passed: arguments that gradients reach inside the function, and which; whether their graph
            is to be kept.
        flags: tensors whose `requires_grad` is another one afterwards, and which.
        survivors: cells made in the trace that outlive it without being any of these.
        count: how many leaves a call's arguments have.
        sharing: how the implicit ones share storages.
        pinned, pinned_hosts: arguments that are also part of the state.
        stored: arguments whose whole storage is the input, and how they must lie in it.
        optimizers: those that stepped.
        checks: the checks of values that were asked for, and of those that were assumed.
        guards: what must hold for the program to serve a call.
        apart: what must hold of its arguments and the state; None for nothing.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        leaves: list[Any],
        spec: Any,
        with_storage: frozenset[int],
        checks: bool,
        assumptions: Assumptions | None,
        path: tuple[Step, ...],
        given: Any = None,
        own: frozenset[Any] = frozenset(),
    ) -> None:
        self.ambient = ambient()
        self.implicit: list[Implicit] = []
        self.flags: list[tuple[Target, bool]] = []
        self.rewritten: list[Attached] = []
        self.passed: list[tuple[Argument, Description, bool]] = []
        self.rebound: list[tuple[Rebound, list[Description]]] = []
        self.effects: Effects
        self.modes: dict[str, Any] = {}
        self.unrepeatable: list[str] = []
        self.backward: Backward | None = None
        self.checks: Checks | Assumed = Checks()
        self.apart: Apart | None = None
        trace = _Trace(self, fn, leaves, with_storage, checks, assumptions, path)
        trace.given, trace.own_containers = given, own
        try:
            self.jaxpr, self.inputs = trace.run(fn, spec)
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
        self.tensors: dict[int, torch.Tensor] = {}
        self.aliases: dict[int, torch.Tensor] = {}
        self.before: dict[int, tuple[torch.Tensor | None, bool, torch.Tensor, Cell]] = {}
        self.histories = Histories()
        for tensor in reach.tensors.values():
            self._know(tensor)
        self.cpu_random = torch.get_rng_state()
        self.arguments = Arguments(leaves, own, with_storage)
        self.stand_ins = self.arguments.stand_ins
        self.histories.know_arguments(self.stand_ins)
        outside = reach.tensors | {id(t): t for t in self.stand_ins if is_tensor(t)}
        self.witness = Witness(self.lifting, self._on_tensor, self._on_operator, outside)
        recording.pinned, recording.stored = self.arguments.pinned, self.arguments.stored
        self.flags: list[tuple[torch.Tensor, bool]] = []
        self.given: Any = None
        self.own_containers: frozenset[Any] = frozenset()
        self.spec: Any = None
        self.free: list[tuple[Row, Any]] = []
        self.implicit: list[tuple[Implicit, list[Any]]] = []
        self.fixed: list[tuple[torch.Tensor, torch.Tensor]] = []

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
            self._know(tensor)

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

    def _know(self, tensor: torch.Tensor) -> None:
        """Remember how a tensor was before the function could change it."""
        if id(tensor) in self.tensors or tensor.device.type != "jax":
            return
        self.histories.know(tensor)
        if not tensor.is_leaf:
            return
        self.tensors[id(tensor)] = tensor
        alias = tensor.detach()
        self.before[id(tensor)] = tensor.grad, tensor.requires_grad, alias, cell_of(tensor)

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
        self._forget_aliases()
        self._undo_data()
        recording.modes = self.modes.changed()
        rebound = self.state.collect(id(leaf) for leaf in leaves if id(leaf) in kept)
        self._tell_apart()
        self.arguments.check_separable(self.lifting.written.keys())
        self._find_implicit(rebound)
        describer = Describer(
            self.lifting,
            self.stand_ins,
            self.witness.handles,
            self.reach.tensors | self.state.snapshot.tensors,
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
        recording.flags = [(self._target(tensor, positions), flag) for tensor, flag in self.flags]
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
        self.aliases.clear()
        self.made = describer.forget()
        leaves.clear()
        del rebound
        recording.survivors = self._find_survivors(made, describer)
        recording.written = [self.arguments.indexes.get(cell, cell) for cell in written]
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
        recording.written = []
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
            if found is None and not (self._is_made_here(tensor) or id(tensor) in self.aliases):
                found = self._target(tensor, positions)
            return found

        return place

    def _is_made_here(self, tensor: torch.Tensor) -> bool:
        return is_tensor(tensor) and self.lifting.is_fresh(cell_of(tensor))

    def _tell_apart(self) -> None:
        """Arguments and state are told apart where the program depends on it.

        Raises:
            Overlap: they are not apart.
        """
        snapshot = self.state.snapshot
        distinct = self._distinct_objects()
        changes = self.state.changes_containers
        if changes and (found := overlapping(self.given, snapshot.rows).keys()):
            if not found <= self.own_containers:
                raise Overlap(found)
        tensors = self.own_tensors | snapshot.tensors if snapshot.compares_objects else None
        changes = changes and self.given is not None and not self.own_containers
        if changes or tensors is not None or distinct is not None:
            self.recording.apart = Apart(snapshot.rows, changes, tensors, self.leaves, distinct)

    def _distinct_objects(self) -> Distinct | None:
        """What tells the objects that were taken apart from those of the state; None if none were.

        Raises:
            Restructure: they are not apart, or the function asks for their identity.
        """
        if not isinstance(self.spec, Structure) or self.given is None:
            return None
        snapshot, opened = self.state.snapshot, self.spec.opened
        distinct = Distinct(opened, snapshot.known)
        closed = opened if snapshot.asks_identity else distinct.shared(self.given)
        if closed:
            raise Restructure(closed=closed)
        return distinct

    def _forget_aliases(self) -> None:
        """Let go of tensors that were made in the trace over storages from outside.

        No call finds them again: what they are told (a gradient, a flag) is lost with them, or
        part of what the function gives.
        """
        outside = self.reach.tensors | self.state.snapshot.tensors
        outside |= {id(t): t for t in (*self.stand_ins, *self.leaves)}
        cells = {cell_of(t) for t in outside.values() if is_tensor(t)}
        for key in [k for k, t in self.tensors.items() if k not in outside and cell_of(t) in cells]:
            self.aliases[key] = self.tensors.pop(key)
            del self.before[key]
        self.histories.forget(self.aliases)

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
            if tensor.requires_grad != flag and tensor.is_leaf:
                self.flags.append((tensor, tensor.requires_grad))
                tensor.requires_grad_(flag)

    def _find_implicit(self, rebound: list[Rebound]) -> None:
        """Tensors that are handed in anew at each call: those of rebound places, and gradients."""
        tensors = self.reach.tensors | self.state.snapshot.tensors
        known = Counter(cell_of(t) for t in tensors.values() if is_tensor(t))
        rebound = [*rebound, *self.state.freed]
        alone = self._held_alone(rebound) if rebound else ()
        for place in rebound:
            tensors = [t for t in place.before if is_tensor(t)]
            cells = [cell_of(t) for t in {id(t): t for t in tensors}.values()]
            if (
                tensors
                and place in alone
                and all(map(self._is_replaceable, tensors))
                and all(
                    known[cell] <= cells.count(cell) and cell not in self.arguments.indexes
                    for cell in cells
                )
            ):
                self.free.append((place.holder, place.key))
                self._add_implicit(HeldIn(place), place.before)
        positions = {id(t): i for i, t in enumerate(self.stand_ins)}
        gradients = [one for key in self.tensors if (one := self.before[key][0]) is not None]
        known.update(map(cell_of, gradients))  # one that several tensors have is none of its own
        for key, tensor in self.tensors.items():
            gradient = self.before[key][0]
            if gradient is not None and cell_of(gradient) in self.lifting.values:
                if known[cell_of(gradient)] > 1 or cell_of(gradient) in self.arguments.indexes:
                    self.fixed.append((tensor, gradient))
                    continue
                self._add_implicit(GradientOf(self._target(tensor, positions)), [gradient])
        self.state.freed.clear()
        self.recording.sharing = signature.sharing(self.stand_ins[len(self.leaves) :])

    def _held_alone(self, places: list[Rebound]) -> list[Rebound]:
        """The places whose tensors and containers no other place of the state holds."""
        held: Counter[int] = Counter()
        for row in self.state.snapshot.rows.values():
            stack = list(row.before.values())
            while stack:
                value = stack.pop()
                held[id(value)] += 1
                if isinstance(value, tuple):
                    stack += value
        before = [(place, place.holder.before[place.key]) for place in places]
        given = Counter(id(value) for _, value in before)
        given.update(
            id(leaf) for place, value in before for leaf in place.before if leaf is not value
        )
        return [
            place
            for place, value in before
            if all(
                held[id(one)] <= given[id(one)]
                for one in (value, *place.before)
                if not _is_plain(one)
            )
        ]

    def _is_replaceable(self, tensor: torch.Tensor) -> bool:
        """Whether another tensor may stand in its place in the next call."""
        if not tensor.is_leaf:
            return True
        before = self.before.get(id(tensor))
        gradient = tensor.grad if before is None else before[0]
        return gradient is None and not is_hooked(tensor)

    def _add_implicit(self, source: Implicit, tensors: list[Any]) -> None:
        self.recording.implicit.append(source)
        self.implicit.append((source, tensors))
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
            if not (tensor.is_leaf or tensor.retains_grad):
                continue  # it was written in place: PyTorch warns of who asks for its gradient
            before, after = self.before[key][0], tensor.grad
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
        passed = self.histories.passed(self.leaves, lambda t: id(t) in self.tensors)
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
        for key, tensor in self.tensors.items():
            gradient, flag, alias, cell = self.before[key]
            if cell_of(tensor) is not cell:
                tensor.data = alias
            if tensor.requires_grad != flag:
                tensor.requires_grad_(flag)
            if tensor.grad is not gradient:
                tensor.grad = gradient
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
        for source, tensors in self.implicit:  # now that the tensors are as they were
            source.expect(tensors)
        recording.count = len(self.leaves)
        recording.draws = self.lifting.draws
        recording.seeded = self.lifting.final_random()
        gradients = {key: before[0] for key, before in self.before.items()}
        names = names_by_cell(self.reach, list(self.lending.optimizers), gradients)
        recording.pinned_hosts = self.place_inputs(names)
        recording.handles = {
            cell: tensor
            for cell, tensor in self.witness.handles.items()
            if cell not in self.arguments.indexes
        }
        positions = {id(t): i for i, t in enumerate(self.stand_ins)}
        if recording.backward is not None:
            watch(recording, self.late, self.made)
        given = {id(t) for i, t in enumerate(self.leaves) if i not in recording.pinned}
        recording.guards = self._guards(given | positions.keys())

    def place_inputs(self, names: dict[Cell, str] | None = None) -> list[tuple[int, torch.Tensor]]:
        """Tell the program's inputs from each other; gives the CPU tensors that are two things."""
        finder = SourceFinder(self.leaves, self.arguments, self.own_hosts)
        for one in self.recording.inputs:
            finder.find(one, names or {}, self.reach.names)
        return finder.pinned_hosts

    def _guards(self, positions: set[int]) -> list[Any]:
        """The guards of the program, cheapest first."""
        known = [(t, key) for key, t in self.tensors.items() if key not in positions]
        state = state_of(self.recording.inputs)
        optimizers = list(self.lending.optimizers)
        snapshot = self.state.snapshot
        rows = weakened(snapshot.rows, snapshot.weak.values())
        moved = {row: rows[key] for key, row in snapshot.rows.items()} if snapshot.weak else {}
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
            StateGuard(rows, [(moved.get(row, row), key) for row, key in self.free]),
        ]
        self.recording.optimizers = optimizers
        if optimizers:
            guards.append(OptimizerGuard(optimizers, self.lending.watch))
        if self.witness.looked_at:
            hosts = {id(t): i for i, t in enumerate(self.leaves) if isinstance(t, torch.Tensor)}
            guards.append(HostGuard((t, hosts.get(id(t))) for t in self.witness.looked_at.values()))
        return guards
