"""Describes the effects of a traced function so that each call can repeat them."""

import math
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from jax import Array

from calque.device.memory.cell import Cell, cell_of, read
from calque.errors import TraceError, noting_refusals, noting_uses_elsewhere
from calque.errors.handlers import is_of_handler
from calque.jitting.backward_effects import BackwardEffects
from calque.jitting.effects import Rebound
from calque.jitting.finding_implicit import target_of
from calque.jitting.input_sources import sink_of
from calque.jitting.kept_ids import kept_ids, look_for_kept
from calque.jitting.made_modules import check_gradients_reach, made_here
from calque.jitting.object_results import (
    classes_among,
    classes_created_again,
    ending,
    of_new_classes,
    opened,
)
from calque.jitting.recording import Target
from calque.jitting.replaced_state import exchanged
from calque.jitting.result_descriptions import Describer
from calque.jitting.returned_containers import Containers
from calque.jitting.state_arguments import apart_of, belonging
from calque.jitting.variable_numbers import globals_of
from calque.program import signature
from calque.program.gradients.derivatives import derive
from calque.program.gradients.differentiable import TraceBoundary, trace_backward
from calque.program.gradients.escaping_tensors import Carriers
from calque.program.gradients.graph_boundary import Edge, has_graph, is_leaf, is_leaf_node
from calque.program.lazy_arguments import Restructure, watching_objects
from calque.program.results import Constant, Description, Fresh, OwnTensor
from calque.program.trace_collection import collect_new
from calque.program.traced_numbers import Comparisons, NumberNeeded
from calque.program.trees import is_tensor
from calque.program.value_checks import Checks
from calque.state import Running
from calque.state.names import names_of
from calque.state.stores import take_apart_stored

if TYPE_CHECKING:
    from calque.jitting.tracing import JitTrace

_HANDS_OVER = "work is passed to another thread, or waited for"
_HOOKING = frozenset(("register_hook", "register_prehook", "register_multi_grad_hook"))


class Outcome:
    """The results of one trace, and all other changes made by its function.

    Args:
        trace: the running trace.
    """

    def __init__(self, trace: "JitTrace") -> None:
        self._trace = trace
        self._recording = trace.recording
        self._leaves: list[Any] = []
        self._positions: dict[int, int] = {}
        self._unreached: list[weakref.ref[torch.Tensor]] = []

    def body(self, fn: Callable[..., Any], given: list[Any]) -> list[Array]:
        """Run the function, and describe its effects; returns the outputs of the program.

        Args:
            fn: the function.
            given: its args and kwargs, which are removed from the list.
        """
        trace, recording = self._trace, self._recording
        running = Running(trace.state.snapshot, trace.host_tensor_mode.read)
        trace.optimizer_tracing.running = running
        # In a list, because PyTorch's frame evaluation keeps references to the arguments of calls.
        with trace.variables.installed(globals_of(fn)):
            returned = [self._run(running, fn, given)]
        trace.variables.take(trace.stand_ins)
        trace.optimizer_tracing.check_unchanged(running)
        take_apart_stored(trace.state.snapshot)
        found = trace.variables.settle(trace.state.snapshot, trace.state.given)
        trace.state.assigned.update((row, key) for row, key, _ in found)
        trace.state.numbers.computed = trace.optimizer_tracing.numbers.settle() + found
        describer = self._described(returned)
        trace.state.numbers.compare_read(running.all_reported)
        trace.state.numbers.leave_out_idle(trace.optimizer_tracing.optimizers, running.all_reported)
        recording.checks = Checks.of(trace.lifting, describer)
        if trace.assumptions is not None:
            recording.checks = trace.assumptions.checked_by(recording.checks, describer)
        # JAX donates an input's memory to the first output of its shape, so keep the same order.
        slots = trace.lifting.cell_slots
        written = sorted(trace.lifting.written, key=lambda cell: slots.get(cell, math.inf))
        made = list(trace.lifting.fresh.values())
        describer.settle()
        trace.host_tensor_mode.settle()
        self._note_implicit()
        border = trace.histories.border
        around = TraceBoundary(border, border.tensors, self._placing(describer))
        if trace.path:
            return self._derive(describer, around)
        effects = BackwardEffects(trace)
        if describer.carriers.found:
            numbers = trace.variables.refused(trace.state.snapshot)
            with effects.refused(), running.watching(), numbers:  # also of what this pass reads
                found = trace_backward(trace.lifting, describer.carriers.found, around)
            effects.expect_whole(found)
            recording.backward = found
        trace.histories.restore()
        trace.known.aliases.clear()
        trace.made = describer.forget()
        self._leaves.clear()
        trace.layers.leave_backward()
        trace.lifting.forget_moved()
        if trace.variables:
            trace.state.release_arguments()
        _check_numbers(trace.optimizer_tracing.watch)
        _check_numbers(trace.variables.watch)
        recording.survivors = _survivors(made, describer)
        if recording.survivors:
            recording.left = trace.state.snapshot.holding_tensors()
            self._check_gradients_reach(fn)
        effects.check_nothing_stays(made)
        recording.sinks = [sink_of(cell, trace.arguments, len(trace.leaves)) for cell in written]
        return self._outputs([trace.lifting.values[cell] for cell in written] + describer.arrays)

    def _check_gradients_reach(self, fn: Callable[..., Any]) -> None:
        returned = [one.value for one in self._recording.results if isinstance(one, Constant)]
        code = getattr(fn, "__code__", None)
        place = f"{code.co_filename}:{code.co_firstlineno}: " if code else ""
        check_gradients_reach(self._unreached, returned, place)

    def _run(self, running: Running, fn: Callable[..., Any], given: list[Any]) -> Any:
        """Returns the function's result."""
        trace = self._trace
        args, kwargs = given
        given.clear()
        with noting_refusals() as refusals, noting_uses_elsewhere() as elsewhere:
            try:
                with (
                    watching_objects() as touched,
                    trace.arguments.watched(),
                    running.watching(),
                ):
                    try:
                        result = fn(*args, **kwargs)
                    except Exception as error:
                        self._check_elsewhere(elsewhere)
                        if not is_of_handler(error):  # a traced number may be the cause
                            trace.optimizer_tracing.give_up_in_step()
                            self._look_for_rebuilt()
                        raise
                self._check_elsewhere(elsewhere)
                if touched:
                    raise Restructure(touched=touched)
                kept_plain = (
                    trace.optimizer_tracing.kept_plain
                    | trace.optimizer_tracing.watch.needed
                    | trace.variables.watch.needed
                )
                if kept_plain:  # the function may have caught the error
                    raise NumberNeeded(kept_plain)
                if trace.assumptions is not None:
                    trace.assumptions.check_met()
                if refusals:  # which the function caught
                    raise refusals[0]
                return result
            finally:
                refusals.clear()  # their tracebacks hold this frame
                elsewhere.clear()

    def _check_elsewhere(self, uses: list[TraceError]) -> None:
        """Raise the error that a thread met to which the function passed a traced tensor."""
        if uses and self._trace.state.snapshot.code.hands_over:
            raise uses[0].with_traceback(None) from None

    def _look_for_rebuilt(self) -> None:
        """Check, after an error, that it is not because the function looked for an argument in its
        state (`self.layers.index(layer)`) that it got anew.
        """
        trace = self._trace
        own = trace.own_containers
        belonging(trace.state, trace.given, trace.spec, own)
        look_for_kept(trace.state, trace.given, own)

    def _described(self, returned: list[Any]) -> Describer:
        """Describe the result, which is removed from a list, and other changes, which are
        undone.
        """
        result = returned.pop()
        trace, recording = self._trace, self._recording
        outside = {id(row.owner) for row in trace.state.snapshot.rows.values()}
        kept = trace.state.look()
        before = trace.state.snapshot.known
        given: Any = trace.given or ()
        before.update(classes_among(given))  # which no other name may lead to
        outside.update(key for key, one in before.items() if isinstance(one, tuple))
        outside -= trace.state.left.moving
        containers = Containers(result, outside, trace.state.given, kept, before)
        leaves, recording.spec = containers.flatten(result)
        del result  # otherwise its tensors would seem to outlive the trace
        self._leaves = leaves
        trace.state.keep(leaves)
        known = {**before, **trace.state.given}
        kept |= made_here(leaves, known, trace.state.places())
        kept |= classes_created_again(leaves, known)
        trace.state.unrepeatable += ending(leaves, known)
        if trace.state.snapshot.code.hands_over:  # what that computes is no part of the trace
            trace.state.unrepeatable.append(_HANDS_OVER)
        shared = kept.union(trace.state.given)
        mine, same = opened(leaves, shared, before, self._is_made_here)
        trace.state.unrepeatable += of_new_classes([*leaves, *same.values()], known)
        containers.keep(kept | mine)
        reached = self._outside()
        trace.known.forget_aliases(reached)
        flags = trace.known.undo_data(reached)
        recording.modes = trace.modes.changed()
        passed = trace.leaves, trace.stand_ins, trace.given, trace.own_containers
        recording.kept_ids = kept_ids(trace.state, *passed, leaves)
        rebound = trace.state.collect(leaves)
        describer = self._describer(rebound)
        recording.gradients = self._describe_gradients(describer)
        recording.results = [containers.describe(leaf, describer) for leaf in leaves]
        describe = trace.state.describing(describer.describe)
        recording.rebound = [(place, list(map(describe, place.after))) for place in rebound]
        for place in rebound:
            place.after.clear()
        constants = [one.value for one in recording.results if isinstance(one, Constant)]
        trace.state.counts.refuse_any(constants)
        if "print" not in trace.state.snapshot.namespaces.own_words:  # another trace repeats it
            recording.changed_numbers = trace.state.changed_numbers()
        recording.effects = trace.state.described(
            describer.describe, containers.kept, same, describer.attributed
        )
        containers.kept.clear()
        same.clear()
        recording.unrepeatable = trace.state.unrepeatable
        recording.rewritten = [
            describer.rewritten(tensor, self._target(tensor))
            for tensor in trace.histories.changed()
        ]
        recording.flags = [(self._target(tensor), flag) for tensor, flag in flags]
        return describer

    def _describer(self, rebound: list[Rebound]) -> Describer:
        """Returns the describer of tensors, once the program's other inputs are known."""
        trace, recording = self._trace, self._recording
        trace.apart = apart_of(
            trace.state,
            trace.given,
            trace.spec,
            trace.leaves,
            trace.own_containers,
            trace.own_tensors,
            trace.stand_ins,
        )
        trace.arguments.check_apart(trace.state.snapshot.tensors.values())
        changed = trace.state.keys_changed(rebound)
        kept = trace.state.kept_by_calls() if trace.exchanged else ()
        trace.state.freed += exchanged(trace.exchanged, trace.state.snapshot, changed, kept)
        trace.implicit.find(rebound, self._reached())
        if trace.apart is not None:
            trace.apart.places = trace.implicit.free
        trace.arguments.check_separable(trace.lifting.written.keys())
        self._note_implicit()
        describer = Describer(
            trace.lifting,
            trace.stand_ins,
            trace.host_tensor_mode.handles,
            self._reached() | {id(one): one for _, one in trace.implicit.fixed},
            recording.pinned,
            recording.stored,
            len(trace.leaves),
            trace.state.unrepeatable,
            self._may_have_hooks(),
            trace.state.snapshot.known,
            trace.known.moved,
            trace.implicit.moved,
        )
        describer.number = trace.variables.described
        return describer

    def _note_implicit(self) -> None:
        trace, recording = self._trace, self._recording
        recording.implicit = [source for source, _ in trace.implicit.found]
        recording.others = trace.implicit.others
        recording.sharing = signature.arrangement(trace.stand_ins[len(trace.leaves) :])
        self._positions = {id(t): i for i, t in enumerate(trace.stand_ins)}

    def _may_have_hooks(self) -> bool:
        """Returns True if code may have registered hooks on tensors or autograd nodes."""
        snapshot = self._trace.state.snapshot
        named = any(_HOOKING & names_of(code).words for code in snapshot.codes)
        return named or any(map(snapshot.namespaces.computes, _HOOKING))

    def _outputs(self, outputs: list[Array]) -> list[Array]:
        """Returns the outputs of the forward pass, followed by those of the backward pass."""
        backward = self._recording.backward
        self._recording.n_outputs = len(outputs)
        return outputs + (backward.gradients if backward else [])

    def _derive(self, describer: Describer, around: TraceBoundary) -> list[Array]:
        """Returns the gradients along `path`, which are the program's only outputs."""
        recording = self._recording
        tensors = [carrier.tensor for carrier in describer.carriers.found]
        derived = derive(self._trace.lifting, tensors, around, self._trace.path)
        recording.results = []
        carriers = Carriers()
        for index, gradient in enumerate(derived.gradients):
            bare = Fresh(index, None, None, gradient.dtype)
            recording.results.append(carriers.add(gradient, bare) if has_graph(gradient) else bare)
        carriers.number()
        recording.backward = trace_backward(self._trace.lifting, carriers.found, derived.around)
        recording.sinks = []
        return self._outputs([read(gradient) for gradient in derived.gradients])

    def _placing(self, describer: Describer) -> Callable[[Edge], Description | None]:
        """Returns a function that returns where each call finds a tensor with gradients, None if
        the call creates it.
        """
        tensors = self._trace.histories.border.tensors

        def place(edge: Edge) -> Description | None:
            tensor = tensors.get(edge)
            tensor = edge[0].variable if tensor is None else tensor
            found = describer.leaf(tensor)
            if found is None and not (
                self._is_made_here(tensor) or id(tensor) in self._trace.known.aliases
            ):
                found = self._target(tensor)
            if found is None and is_leaf_node(edge[0]):
                self._unreached.append(weakref.ref(tensor))
            return found

        return place

    def _is_made_here(self, tensor: torch.Tensor) -> bool:
        return is_tensor(tensor) and self._trace.lifting.is_fresh(cell_of(tensor))

    def _reached(self) -> dict[int, torch.Tensor]:
        """Returns all tensors that the function can reach, by id."""
        return self._trace.reach.tensors | self._trace.state.snapshot.tensors

    def _outside(self) -> dict[int, torch.Tensor]:
        """Returns the tensors that the function reaches, and the arguments."""
        return self._reached() | {id(t): t for t in (*self._trace.stand_ins, *self._trace.leaves)}

    def _target(self, tensor: torch.Tensor) -> Target:
        return target_of(tensor, self._positions, self._recording.pinned)

    def _describe_gradients(self, describer: Describer) -> list[tuple[Target, Description | None]]:
        effects: list[tuple[Target, Description | None]] = []
        for key, tensor in self._trace.known.tensors.items():
            if not (is_leaf(tensor) or tensor.retains_grad):
                continue  # written in place, so PyTorch would warn about reading its gradient
            before, after = self._trace.known.before[key].gradient, tensor.grad
            if after is not before:
                self._trace.known.given.add(key)
                described = None if after is None else describer.describe(after)
                effects.append((self._target(tensor), described))
                tensor.grad = before
        for index, leaf in enumerate(self._trace.leaves):
            stand_in = self._trace.stand_ins[index]
            was_leaf = isinstance(leaf, torch.Tensor) and is_leaf(leaf)
            if was_leaf and stand_in is not leaf and stand_in.grad is not None:
                effects.append((OwnTensor(index), describer.describe(stand_in.grad)))
                stand_in.grad = None
        passed = self._trace.histories.passed(
            self._trace.leaves, lambda t: id(t) in self._trace.known.tensors
        )
        self._recording.passed = [
            (OwnTensor(index), describer.describe(gradient), kept)
            for index, gradient, kept in passed
        ]
        return effects


def _check_numbers(watch: Comparisons) -> None:
    """Refuse traced numbers of optimizers that outlive the trace.

    Raises:
        NumberNeeded: a traced number outlives the trace.
    """
    if watch.alive():
        collect_new()
    alive = watch.alive()
    watch.forget()
    for node in alive:
        watch.give_up(node)


def _survivors(made: list[Any], describer: Describer) -> list[tuple[Cell, int]]:
    """Returns the cells created in the trace that outlive it, with the index of their output."""
    if any(ref() is not None for ref in made):
        collect_new()
    alive = [cell for ref in made if (cell := ref()) is not None]
    return [(cell, describer.add(cell.array)) for cell in alive]
