"""Traces a function once: from a Python call to a jaxpr with its inputs, outputs and guards."""

from collections import ChainMap
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from calque.device.memory.cell import Cell, active, cell_of
from calque.errors import TraceError
from calque.errors.handlers import settles
from calque.jitting.always_called import refusal
from calque.jitting.arguments import Arguments
from calque.jitting.assumed_values import AssumedValues
from calque.jitting.autograd_history import Histories, without_saved_hooks
from calque.jitting.copied_counts import Counts
from calque.jitting.effects import seen_apart
from calque.jitting.error_values import without_values
from calque.jitting.finding_implicit import ImplicitFinder
from calque.jitting.guards import OptimizerGuard
from calque.jitting.host_tensors import HostTensorMode
from calque.jitting.input_names import names_by_cell
from calque.jitting.input_sources import SourceFinder, state_of
from calque.jitting.known_tensors import KnownTensors
from calque.jitting.layer_names import LayerNames
from calque.jitting.modes import Modes, function_modes
from calque.jitting.module_calls import watching_calls
from calque.jitting.optimizer_rollback import Prepared
from calque.jitting.optimizers import OF_TENSORS, OptimizerTracing
from calque.jitting.outcome import Outcome
from calque.jitting.python_effects import PythonState
from calque.jitting.reachable import Reachable
from calque.jitting.recording import TraceRecording
from calque.jitting.replaced_state import Place as Exchanged
from calque.jitting.state_arguments import Apart, Overlap, SharesState, with_own
from calque.jitting.trace_guards import guards_of_calls, guards_of_state
from calque.jitting.variable_numbers import Variable, VariableNumbers, kept_after
from calque.program import trees
from calque.program.gradients.derivatives import DerivativeStep
from calque.program.gradients.graph_boundary import is_leaf
from calque.program.gradients.saved_values import watch
from calque.program.lazy_arguments import is_unread
from calque.program.lifted import lift
from calque.program.lifting import Input, Lifting
from calque.program.number_errors import NumberNeeded, Place
from calque.program.results import Inseparable
from calque.program.trees import is_tensor
from calque.state import Snapshot
from calque.state.ownership import Owner, owner_of_class
from calque.upstream import torch_c


def record(
    fn: Callable[..., Any],
    leaves: list[Any],
    spec: object,
    checks: bool = False,
    assumptions: Callable[[], AssumedValues | None] = lambda: None,
    path: tuple[DerivativeStep, ...] = (),
    given: object = None,
    exchanged: tuple[Exchanged, ...] = (),
    *,
    prepared: Prepared,
    counts: Counts | None = None,
    numbers: tuple[Variable, ...] = (),
) -> TraceRecording:
    """Trace a function for the leaves of a call's arguments.

    Args:
        fn: the function.
        leaves, spec: the arguments.
        checks: whether the program checks values.
        assumptions: the values that the trace may assume.
        path: the gradients that the program returns instead of the function's results, if any.
        given: the call's (args, kwargs).
        exchanged: variables whose tensors are replaced between calls.
        prepared: records the preparation of optimizers.
        counts: counts for which other numbers stand.
        numbers: variables whose numbers are read in each call.
    """
    with_storage: frozenset[int] = frozenset()
    own: frozenset[Any] = frozenset()
    joined: frozenset[Cell] = frozenset()
    kept_plain: frozenset[Place] = frozenset()
    while True:
        try:
            found = given, own, exchanged, joined, kept_plain, prepared, counts, numbers
            return _traced(fn, leaves, spec, with_storage, checks, assumptions(), path, *found)
        except Overlap as error:
            if error.places <= own:
                raise TraceError(
                    "an argument is a container that the function also reaches and changes in "
                    "another way, so its tensors cannot be told apart from the function's own: "
                    "pass a copy"
                ) from None
            own |= error.places
        except SharesState as error:
            joined |= error.cells
        except NumberNeeded as error:
            if error.places <= kept_plain:
                raise
            kept_plain = kept_after(error, kept_plain, numbers)
        except Inseparable as error:
            if error.indexes <= with_storage:
                raise
            with_storage |= error.indexes


class Unshaped(BaseException):
    """Signals that parameters have no shapes yet, so an eager call must initialize them."""


def _traced(
    fn: Callable[..., Any],
    leaves: list[Any],
    spec: object,
    with_storage: frozenset[int],
    checks: bool,
    assumptions: AssumedValues | None,
    path: tuple[DerivativeStep, ...],
    given: object,
    own: frozenset[Any],
    exchanged: tuple[Exchanged, ...],
    joined: frozenset[Cell],
    kept_plain: frozenset[Place],
    prepared: Prepared,
    counts: Counts | None,
    numbers: tuple[Variable, ...],
) -> TraceRecording:
    recording = TraceRecording()
    trace = JitTrace(
        recording, fn, leaves, with_storage, checks, assumptions, path, joined, prepared
    )
    trace.given, trace.own_containers, trace.exchanged = given, own, exchanged
    trace.state.numbers.kept_plain = kept_plain
    trace.state.counts = trace.state.counts if counts is None else counts
    trace.variables = VariableNumbers(trace.lifting, trace.state.counts, numbers, kept_plain)
    trace.variables.give(trace.stand_ins, trace.state.snapshot)
    trace.optimizer_tracing.reads_tensors = OF_TENSORS not in kept_plain
    try:
        _run(trace, recording, fn, spec)
    finally:
        trace.forget()
    return recording


def _run(trace: "JitTrace", recording: TraceRecording, fn: Callable[..., Any], spec: Any) -> None:
    assumptions = trace.assumptions
    try:
        recording.jaxpr, recording.inputs = trace.run(fn, spec)
    except BaseException as error:  # no signal handler may run before everything is restored
        refused = _refusal_of(trace, error, assumptions)
        if refused is not None:
            raise refused from error
        raise
    if trace.path:
        trace.rollback()
        trace.variables.end(recording)
        trace.place_inputs()
    else:
        trace.finish()


@settles
def _refusal_of(
    trace: "JitTrace", error: BaseException, assumptions: AssumedValues | None
) -> TraceError | None:
    """Restore the state from before a failed trace; returns the error to raise instead."""
    without_values(error, trace)
    refused = refusal(error, trace.modules)
    try:
        trace.rollback()
    except TraceError as left:
        if refused is not None or not _ends_the_call(error, assumptions):
            raise
        error.add_note(str(left))  # the state is as after this error in an eager call
    return refused


def _ends_the_call(error: BaseException, assumptions: AssumedValues | None) -> bool:
    """Returns True if an error is for the user, and the trace will not be repeated."""
    if owner_of_class(type(error)) is Owner.ENGINE and not isinstance(error, TraceError):
        return False
    return assumptions is None or (assumptions.unmet is None and not assumptions.has_answered)


class JitTrace:
    """A running trace, which stores its results in a recording."""

    def __init__(
        self,
        recording: TraceRecording,
        fn: Callable[..., Any],
        leaves: list[Any],
        with_storage: frozenset[int],
        checks: bool,
        assumptions: AssumedValues | None,
        path: tuple[DerivativeStep, ...],
        joined: frozenset[Cell],
        prepared: Prepared,
    ) -> None:
        self.path = path
        self.recording = recording
        self.leaves = leaves
        self.assumptions = assumptions
        self.lifting: Lifting = Lifting(checks, assumptions)
        self.optimizer_tracing: OptimizerTracing = OptimizerTracing(self.lifting, prepared)
        reach = Reachable(fn)
        self.reach: Reachable = reach
        if any(map(is_lazy, reach.tensors.values())):
            raise Unshaped
        own = joined.union(cell_of(t) for t in reach.tensors.values() if is_tensor(t))
        self.own_tensors: dict[int, torch.Tensor] = dict(reach.tensors)
        reach.add([leaf for leaf in leaves if not is_unread(leaf)], "arguments")
        self.modes: Modes = Modes()
        self.state: PythonState = PythonState(Snapshot(fn, *function_modes()))
        self._visit_arguments()
        self.lifting.seen_apart = lambda: seen_apart(self.state.snapshot, self.state.unrepeatable)
        self.optimizer_tracing.numbers.keys = self.state.numbers.traced_keys
        self.optimizer_tracing.numbers.row_of = self.state.numbers.row_of
        self.optimizer_tracing.in_steps = self.state.snapshot.code.in_steps
        self.optimizer_tracing.on_prepared = self._on_prepared
        self.modules: MutableMapping[Module, str] = WeakKeyDictionary(reach.modules)
        self.layers: LayerNames = LayerNames(self.modules)
        self.histories: Histories = Histories()
        self.known: KnownTensors = KnownTensors(self.histories)
        self.cpu_random: torch.Tensor = torch.get_rng_state()
        self.arguments: Arguments = Arguments(leaves, own, with_storage)
        for tensor in (*reach.tensors.values(), *self.state.snapshot.tensors.values()):
            self.known.know(tensor)
        self.stand_ins: list[Any] = self.arguments.stand_ins
        self._given_ids: frozenset[int] = frozenset(map(id, self.stand_ins))
        self.histories.know_arguments(self.stand_ins)
        self.state.snapshot.on_tensor = self._on_visited
        outside = reach.tensors | {id(t): t for t in self.stand_ins if is_tensor(t)}
        observers = self.lifting, self._on_tensor, self._on_operator
        given = outside, leaves, ChainMap(outside, self.state.snapshot.tensors)
        self.host_tensor_mode: HostTensorMode = HostTensorMode(*observers, *given)
        self.optimizer_tracing.on_count = self.host_tensor_mode.see
        recording.pinned, recording.stored = self.arguments.pinned, self.arguments.stored
        self.given: Any = None
        self.own_containers: frozenset[Any] = frozenset()
        self.spec: Any = None
        self.exchanged: tuple[Exchanged, ...] = ()
        self.implicit: ImplicitFinder = ImplicitFinder(
            self.state, self.known, self.arguments, self.lifting.values
        )
        self.apart: Apart | None = None
        self.variables: VariableNumbers = VariableNumbers(self.lifting, self.state.counts)

    def _visit_arguments(self) -> None:
        """Record the Python state of arguments, including attributes of tensors."""
        for index, leaf in enumerate(self.leaves):
            if not isinstance(leaf, torch.Tensor):
                if not is_unread(leaf):
                    self.state.snapshot.given.add(id(leaf))
                    self.state.snapshot.visit(leaf, f"arguments[{index}]")
                continue
            for name, value in vars(leaf).items():
                self.state.snapshot.visit(value, f"arguments[{index}].{name}")

    # The trace ------------------------------------------------------------------------------------

    def run(self, fn: Callable[..., Any], spec: Any) -> tuple[Any, list[Input]]:
        """Returns the closed jaxpr of the function, and its inputs with their sources."""
        self.spec = spec
        given: list[Any] = [*trees.unflatten(self.stand_ins, spec)]
        if self.own_containers:
            self.variables.refuse_given()
            given = [*with_own(tuple(given), self.own_containers, self.given)]
            if any(a is not b for a, b in zip(self.stand_ins, self.leaves)):
                raise Overlap(self.own_containers)
            self.state.unrepeatable.append("an argument belongs to the function's state")
        self.state.expect_arguments(given[0], given[1], self.own_containers)
        lifted = lift(self.lifting, lambda: Outcome(self).body(fn, given), self._watching())
        self.late: int = lifted.late
        return lifted.closed, lifted.inputs

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """A context manager that observes optimizers, modules and CPU tensors."""
        with (
            without_saved_hooks(),
            self.optimizer_tracing.installed(),
            watching_calls(self._on_module),
            self.layers.following(),
            self.host_tensor_mode,
        ):
            yield

    def _on_module(self, module: Module) -> Callable[[], object] | None:
        if active.trace is not self.lifting:  # called by another thread
            return None
        if module not in self.modules:
            found = Reachable(module)
            if any(map(is_lazy, found.tensors.values())):
                raise Unshaped
            self.modules.update(found.modules)
            self.reach.names = found.names | self.reach.names
            for tensor in found.tensors.values():
                if not torch_c.functorch.is_functorch_wrapped_tensor(tensor):
                    self._on_visited(tensor)
        return self.layers.enter(module)

    def _on_visited(self, tensor: torch.Tensor) -> None:
        """Handle a tensor that code may change without an operator (`.grad = None`)."""
        made_here = is_tensor(tensor) and self.lifting.is_fresh(cell_of(tensor))
        if not made_here and id(tensor) not in self._given_ids:
            self._on_tensor(tensor)

    def _on_tensor(self, tensor: torch.Tensor) -> None:
        if is_leaf(tensor) or self.histories.is_older(tensor):
            self.known.know(tensor)

    def _on_operator(self, func: object, args: object, kwargs: object) -> None:
        self.layers.before_operator()
        self.arguments.windows.see_operator(func, args, kwargs)
        self.histories.check_operator(func, args, kwargs)

    def _on_prepared(self, optimizer: object, made: list[tuple[Any, Any]]) -> None:
        running = self.optimizer_tracing.running
        self.state.prepared(optimizer, made, running is None or running.creates_optimizers)

    @settles
    def rollback(self) -> None:
        """Restore the state from before the trace."""
        self.histories.restore()
        self.known.restore()
        self.modes.restore()
        self.variables.rollback(self.state.snapshot.rows.values())
        try:
            self.state.restore()  # including the preparation of optimizers, which is undone next
        finally:
            self.optimizer_tracing.rollback()
        torch.set_rng_state(self.cpu_random)

    # Afterwards -----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Fill the recording, and release the tensors of this call."""
        recording = self.recording
        self.optimizer_tracing.prepared.note()
        self.variables.end(recording)
        for source, tensors in self.implicit.found:  # the tensors are restored by now
            source.expect(tensors)
        recording.count = len(self.leaves)
        recording.draws = self.lifting.draws
        recording.seeded = self.lifting.final_random()
        optimizers = list(self.optimizer_tracing.optimizers)
        names = names_by_cell(self.reach, optimizers, self.known.gradients())
        pinned_hosts = self.place_inputs(names)
        recording.handles = {
            cell: tensor
            for cell, tensor in self.host_tensor_mode.handles.items()
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
            self.state,
            self._guard_of(optimizers) if optimizers else None,
            self.apart,
            self.variables,
        )
        mode = self.host_tensor_mode
        found = self.leaves, mode.values(), self.apart, recording, pinned_hosts
        recording.call_guards = guards_of_calls(*found) + mode.computations.guards()

    def _guard_of(self, optimizers: list[Optimizer]) -> OptimizerGuard:
        watch, of = self.optimizer_tracing.watch, self.optimizer_tracing.numbers
        return OptimizerGuard(optimizers, watch, of.whole | self.variables.places, of.counters)

    def place_inputs(self, names: dict[Cell, str] | None = None) -> list[tuple[int, torch.Tensor]]:
        """Find the sources of the program's inputs; returns the CPU tensors that are both arguments
        and state.
        """
        met = {**self.own_tensors, **self.state.snapshot.tensors}
        own_hosts = [tensor for tensor in met.values() if tensor.device.type == "cpu"]
        finder = SourceFinder(self.leaves, self.arguments, own_hosts)
        for one in self.recording.inputs:
            finder.find(one, names or {}, self.reach.names)
        return finder.pinned(self.host_tensor_mode.computations.arguments)

    def forget(self) -> None:
        """Release all references, because parts of the trace refer to this object."""
        self.state.snapshot.forget()
        self.lifting.host_computations = None  # which refers to the arguments
        vars(self).clear()
