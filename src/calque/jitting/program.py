"""Runs a compiled program: gathers its inputs, donates buffers, writes outputs back."""

import operator
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from jax import Array
from jax.errors import JaxRuntimeError
from jax.extend.core import ClosedJaxpr
from torch.autograd.graph import increment_version

from calque.device.memory import rng
from calque.device.memory.cell import Cell, x64
from calque.device.runtime import threads
from calque.device.runtime.code_generation import Options
from calque.device.runtime.placement import spread
from calque.jitting.alias_guards import SharingGuard
from calque.jitting.assumed_values import Assumed
from calque.jitting.fast_call import FastCall, FastCalls
from calque.jitting.guards import CallGuard, Guard
from calque.jitting.input_sources import state_of
from calque.jitting.modes import set_modes
from calque.jitting.program_arguments import Call, Changing, Gathering
from calque.jitting.recording import TraceRecording
from calque.program import call_serialization
from calque.program.channels_last import Order, channels_last
from calque.program.compared_extrema import computed_once
from calque.program.compiler_options import options_of
from calque.program.equal_state import EqualGuard, equal_state
from calque.program.gradients.higher_order import HigherDerivatives, Retrace, SavedValues
from calque.program.gradients.replay import Carrying, carrying
from calque.program.jaxprs import prune
from calque.program.pinning import (
    FoundPlacementGuard,
    PlacementGuard,
)
from calque.program.program import Program
from calque.program.repetitions import shortened
from calque.program.results import Outputs
from calque.program.sharded_products import untransposed
from calque.program.sinks import CellSink, targets
from calque.program.sources import CellSource
from calque.program.stored_kernels import TransposedGathering, stored
from calque.program.transposed_operands import materialized
from calque.program.trees import same_tree, unflatten_tensors


class JittedProgram(Program[Call]):
    """One compiled form of a function, with its guards.

    Attributes:
        recording: the recording of the trace, without its traced arrays.
        calls: the number of calls.
        assumed: the values that it assumes; None if there are none.
        single_use: whether the next call must be traced again, because tensors other than results
            outlive the trace, or the function did something that no program can repeat.
        unverified: whether a second trace must still confirm that the function repeats.
        checked: the number of turns and traces that had ended when the guards last held.
    """

    traced = True

    def __init__(
        self, recording: TraceRecording, retrace: Retrace, scan_layers: bool = False
    ) -> None:
        self.recording = recording
        self._retrace = retrace
        self._scan_layers = scan_layers
        self.guards: list[Guard] = recording.guards
        self.calls: int = 0
        self.unverified = False
        self._fast: FastCalls | None = None
        self.single_use: bool = bool(recording.survivors or recording.unrepeatable)
        self.assumed: Assumed | None = (
            recording.checks if isinstance(recording.checks, Assumed) else None
        )
        self.rebuild: Callable[[list[Any]], Any] = same_tree(recording.spec)
        self.n_written: int = len(recording.sinks)
        self.optimizers: list[Any] = recording.optimizers
        self._state = state_of(recording.inputs)
        written = [sink.cell for sink in recording.sinks if isinstance(sink, CellSink)]
        self._state.update(written)
        self.handles: list[Any] = [
            recording.handles[cell] for cell in written if cell in recording.handles
        ]
        self._call_guards: list[CallGuard] = list(recording.call_guards)
        if recording.implicit or self.n_written:
            shared = recording.sharing, recording.pinned, self._state, bool(self.n_written)
            others = recording.others
            self._call_guards.append(SharingGuard(recording.implicit, *shared, others))
        self.carrying: Carrying | None = None
        self._prepare()

    def _prepare(self) -> None:
        recording = self.recording
        backward = recording.backward
        if backward is None:
            forward, kept = prune(recording.jaxpr)
        else:
            forward, self.carrying, kept = carrying(recording, backward)
        self._gives_gradients = self.carrying is not None and self.carrying.gives_gradients
        del recording.jaxpr
        inputs = [recording.inputs[i] for i in kept]
        self.turned: dict[int, Order] = {}
        only_computes = backward is None and not recording.sinks
        self._options = options_of(forward.jaxpr, only_computes)
        if only_computes and not spread.exists:
            cells = [i for i, one in enumerate(inputs) if isinstance(one.source.memory, Cell)]
            self.turned = stored(forward, cells)
        forward = computed_once(channels_last(forward, self.turned), backward is not None)
        forward = materialized(forward)
        self.forms: list[Any] = forward.out_avals
        self._higher = HigherDerivatives(inputs, recording, self._retrace)
        # The backward pass of a differentiable program may need values that the forward pass
        # overwrites, and after a wrong assumption everything must be unchanged.
        keeps = self._gives_gradients or recording.checks.looks
        self.form(forward, inputs, recording.sinks, keeps)
        self.draws: int = recording.draws
        # In the program's order, because processes that share a mesh must move state in the same
        # order.
        sources = [one.source for one in recording.inputs] + list(recording.sinks)
        cells = [one.cell for one in sources if isinstance(one, CellSource | CellSink)]
        self.place(dict.fromkeys(cells), [one.placement for one in inputs])
        self.guards.append(PlacementGuard(self._state))
        if self.whole is None and not self.turned and not spread.exists:
            self._find_equal(forward)
        if recording.implicit:
            self._call_guards.append(self._implicit_placements())
        self._forward = forward
        self._gathering = Gathering(self.inputs, self._gives_gradients)
        self.gather: Callable[[Call], list[Any]] = self._gathering.arrays
        if self.turned:
            self.gather = TransposedGathering(self.gather, self.turned)
        self._changing = Changing(recording)
        self.checked: int = (
            call_serialization.past.changes + 1
        )  # the count when this trace has ended
        self._is_silent = self._changing.is_nothing and not (
            self.draws or recording.seeded or self.may_raise
        )

    def _find_equal(self, forward: ClosedJaxpr) -> None:
        equal = equal_state(forward, self.inputs, self.sinks)
        if equal is not None:
            self.pass_once(equal)
            cells = [[self.inputs[i].source.memory for i in group] for group in equal.groups]
            self.guards.append(EqualGuard(cells))  # type: ignore[arg-type]

    def _implicit_placements(self) -> FoundPlacementGuard:
        sources, count = self.recording.implicit, self.recording.count
        lay = {
            one.source.memory: one.placement
            for one in self.recording.inputs
            if isinstance(one.source.memory, int) and one.source.memory >= count
        }

        def find(leaves: list[Any]) -> list[Any] | None:
            found = [source.find(leaves) for source in sources]
            return None if None in found else [leaf for one in found for leaf in one or ()]

        return FoundPlacementGuard(find, lay, count)

    def lower(self) -> Any:
        """Returns the program as `jax.stages.Lowered`."""
        with x64():
            forward = self._forward if self.whole is None else untransposed(self._forward)
            forward = shortened(forward, self._scan_layers, calls=self.whole is None)
            return self.lowered(forward, self.turned)

    def compile_with(self, compiler: Callable[[Any, Options], Any], lowered: object) -> None:
        """Compile the program with `compiler`, which takes the lowered program and XLA's
        options.
        """
        try:
            with x64():
                self.run_by(compiler(lowered, self._options))
        except BaseException:
            self.recording.abandon()
            raise

    def describe(self) -> dict[str, Any]:
        """Describes what the program lifts, writes and donates, and its guards."""
        lifted: dict[str, list[str]] = {}
        for one in self.inputs:
            lifted.setdefault(one.source.heading, []).append(one.name)
        return {
            "calls": self.calls,
            "lifted": lifted,
            "written": self.n_written,
            "donated": len(self.donated),
            "rebound": [place.holder.name(place.key) for place, _ in self.recording.rebound],
            "appended": self.recording.effects.lists,
            "assumed": self.assumed.lines() if self.assumed else [],
            "hits": self.assumed.hits if self.assumed else 0,
            "misses": self.assumed.misses if self.assumed else 0,
            "guards": sorted(self.guarded),
        }

    @property
    def guarded(self) -> set[str]:
        """Lists what is compared before each call."""
        return {guard.guarded for guard in (*self.guards, *self._call_guards)}

    # Guards ---------------------------------------------------------------------------------------

    def fast_call(self, args: object, kwargs: object, key: object) -> FastCall | None:
        """Returns a faster function for calls like this one; None if there is none.

        Args:
            args, kwargs: the arguments of a call that the program serves.
            key: the signature of all calls that the program serves.
        """
        one = self.recording
        if one.implicit or one.call_guards or self.assumed:
            return None
        if self._fast is None:
            self._fast = FastCalls(self)
        return self._fast.like(args, kwargs, key)

    @property
    def state_written(self) -> Collection[Cell]:
        """The cells of the state (without arguments), if the program writes to anything."""
        return self._state if self.n_written else ()

    def failing(self, leaves: list[Any], given: object = None) -> Guard | CallGuard | None:
        """Returns the first guard that fails for a call's leaves and (args, kwargs), or None."""
        self.checked = call_serialization.past.changes
        for guard in self.guards:
            if not guard.holds():
                return guard
        for guard in self._call_guards:
            if not guard.holds_for(leaves, given):
                return guard
        return None

    # Calls ----------------------------------------------------------------------------------------

    def __call__(self, leaves: list[Any], given: Any = None) -> Any:
        """Run on the leaves of a call's arguments.

        Args:
            leaves: the leaves.
            given: the call's (args, kwargs), to whose containers the function may write.
        """
        self.calls += 1
        for optimizer in self.optimizers:  # schedulers check it before they warn
            optimizer._opt_called = True
        if self.recording.implicit:
            leaves = list(leaves)
            found = [source.find(leaves) for source in self.recording.implicit]
            leaves += [leaf for one in found if one is not None for leaf in one]
        gathering = self._gathering
        call = leaves, gathering.beforehand(leaves) if gathering.early else (), given, []
        try:
            results, passed = self._ask(call) if self._is_silent else self.step(call)
        except BaseException:
            self.recording.abandon()
            raise
        for tensor, gradient, kept in passed:  # outside the step, because it runs hooks
            torch.autograd.backward(tensor, gradient, kept)
        return self.rebuild(results)

    def _ask(self, call: Call) -> tuple[list[Any], list[Any]]:
        """Run a program that changes nothing."""
        if len(threads.present) < 2:
            arrays = self.gather(call)
        else:
            arrays = call_serialization.at_once(self.reads(call), partial(self.gather, call))
        try:
            outputs = self.execution.call(arrays)
            self.look(call, outputs)
        except JaxRuntimeError as error:
            raise self.failed(error) from None
        return self.finish(call, outputs)

    def reads(self, call: Call) -> list[Cell]:
        """Returns the cells from which the inputs are read."""
        return self._gathering.cells(call[0])

    def changes(self, call: Call) -> list[Cell]:
        """Returns the cells that the call changes."""
        return self._changing.cells(call[0])

    def check(self, call: Call) -> None:
        """Raise `Stale` if the program can no longer serve the call."""
        if call_serialization.past.changes == self.checked:
            return
        leaves = call[0]
        own = leaves[: self.recording.count]
        if self.failing(own, call[2]) is not None:
            raise call_serialization.Stale
        found = own + [leaf for s in self.recording.implicit for leaf in s.find(own) or ()]
        if len(found) != len(leaves) or not all(map(operator.is_, found, leaves)):
            raise call_serialization.Stale

    def look(self, call: Call, outputs: list[Array]) -> None:
        """Raise the errors of failed value checks."""
        self.recording.checks.look(outputs, self.n_written)

    def failed(self, error: RuntimeError) -> BaseException:
        """Returns the error to raise for an error of the program."""
        return super().failed(error) if self.assumed is None else self.assumed.failed(error)

    def targets(self, call: Call) -> list[Cell]:
        """Returns the cells to which the outputs are written."""
        return targets(self.sinks, call[0])

    def finish(self, call: Call, outputs: list[Array]) -> tuple[list[Any], list[Any]]:
        """Make the function's assignments.

        Returns:
            The leaves of its result; and the gradients to pass on, with their tensors and whether
            to keep these tensors' graphs.
        """
        if self.carrying is None or torch.is_grad_enabled():
            found = self._finish(call, outputs)
        else:
            with torch.enable_grad():  # tensors with a graph were created in this mode
                found = self._finish(call, outputs)
        if self.recording.modes:
            set_modes(self.recording.modes)
        return found

    def _finish(self, call: Call, outputs: list[Array]) -> tuple[list[Any], list[Any]]:
        recording, (leaves, _, given, _) = self.recording, call
        if not self.fixed_targets:
            for sink, array in zip(self.sinks, outputs, strict=False):
                sink.store(leaves, array)
        if self.handles:
            increment_version(self.handles)
        if recording.seeded is not None:
            rng.state.restore(*recording.seeded)
        made = Outputs(outputs[self.n_written : recording.n_outputs], leaves, given)
        if recording.formulas:  # before the variables change
            made.numbers = [compute() for compute in recording.formulas]
        for target, flag in recording.flags:
            if flag:
                target.build(made).requires_grad_()
        if self.carrying is not None:
            self._carry(call, made, outputs[recording.n_outputs :])
        for target, description in recording.gradients:
            tensor = target.build(made)
            tensor.grad = None if description is None else description.build(made)
        for cell, output in recording.survivors:
            cell.array = made.arrays[output]
        if recording.effects:
            made.containers = recording.effects.containers(given)
            made.kept = recording.effects.apply(lambda one: one.build(made), made.containers)
        if recording.rebound:
            self._rebind(made)
        results = [description.build(made) for description in recording.results]
        for target, flag in recording.flags:
            target.build(made).requires_grad_(flag)
        if not recording.passed:
            return results, []
        return results, [(t.build(made), g.build(made), kept) for t, g, kept in recording.passed]

    def _rebind(self, made: Outputs) -> None:
        """Rebind tensors, after all new ones have been created."""
        assigned = [
            (place, unflatten_tensors([d.build(made) for d in descriptions], place.spec_after))
            for place, descriptions in self.recording.rebound
        ]
        for place, value in assigned:
            place.holder.put(place.key, value)

    def _carry(self, call: Call, made: Outputs, residuals: list[Array]) -> None:
        """Attach the autograd graph to the tensors of a call."""
        recording, (leaves, _, _, kept) = self.recording, call
        assert self.carrying is not None
        origin = None
        if self._gives_gradients:  # otherwise the inputs are not kept
            origin = SavedValues(self._higher, kept[0], [] if recording.rewritten else leaves)
        self.carrying.carry(made, residuals, origin)
        for rewritten in recording.rewritten:
            rewritten.build(made)
