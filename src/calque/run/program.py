"""Run a compiled program: gather its inputs, donate what it may, write its outputs back."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import jax
import numpy as np
import torch
from jax import Array
from jax.extend.core import jaxpr_as_fun
from torch.autograd.graph import increment_version

from calque.device import rng
from calque.device.cell import Cell, read, write, x64
from calque.device.host import host_array
from calque.run.assumptions import Assumed
from calque.run.differentiable import Replay
from calque.run.direct import direct
from calque.run.donation import picker, protect
from calque.run.guards import HostGuard
from calque.run.implicit import form
from calque.run.jaxprs import prune, split
from calque.run.lifting import Input
from calque.run.materializing import materialized
from calque.run.record import Recording
from calque.run.results import Outputs
from calque.run.signature import is_tensor, same_tree, sharing, unflatten_tensors
from calque.run.windows import unrepeated

_array = attrgetter("array")


_SPOKEN = {
    "cell": "state",
    "argument": "arguments",
    "repeated": "arguments",
    "handed": "state, found anew at each call",
    "host": "CPU tensors, read at each call",
    "host argument": "CPU tensors, read at each call",
    "hyper": "hyper-parameters",
    "random": "random state",
}


class Program:
    """One compiled form of a function, with its guards.

    Attributes:
        recording: what the trace found; its traced arrays are gone.
        calls: how often it ran.
        assumed: the values that it assumes; None if it assumes none.
        single_use: whether the function left tensors behind that are not results, so that its next
            call has to be traced again.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.guards = [g for g in recording.guards if not isinstance(g, HostGuard)]
        self._host_guards = [g for g in recording.guards if isinstance(g, HostGuard)]
        self.calls = 0
        self.single_use = bool(recording.survivors)
        self.assumed = recording.checks if isinstance(recording.checks, Assumed) else None
        self._rebuild = same_tree(recording.spec)
        self._n_written = len(recording.written)
        self._optimizers = recording.optimizers
        self._state = {i.source for i in recording.inputs if i.kind == "cell"}
        self._state |= {target for target in recording.written if type(target) is Cell}
        self._handles = [
            recording.handles[cell] for cell in recording.written if cell in recording.handles
        ]
        self._prepare()

    def _prepare(self) -> None:
        recording = self.recording
        backward = recording.backward
        self._backward: Callable[..., Any] | None = None
        if backward is None:
            forward, kept = prune(recording.jaxpr)
        else:
            slots = [i for i, one in enumerate(recording.inputs) if one.kind == "incoming"]
            forward, late, kept = split(recording.jaxpr, slots, recording.n_outputs)
            self._backward = _taking(
                materialized(late), [recording.inputs[slot].source for slot in slots]
            )
        del recording.jaxpr
        forward = materialized(forward)
        self._inputs = [recording.inputs[i] for i in kept]
        sources = [_source(one) for one in self._inputs]
        self._cells = [source for source in sources if type(source) is Cell]
        self._others = [(i, s) for i, s in enumerate(sources) if type(s) is not Cell]
        # A differentiable program's backward may still need what the forward overwrites, and after
        # a check that failed, or a wrong assumption, everything must be as it was.
        keep = backward is not None or recording.checks.looks
        written = set() if keep else set(recording.written)
        self._donated = [
            i
            for i, one in enumerate(self._inputs)
            if one.kind in ("cell", "argument", "repeated", "handed") and one.source in written
        ]
        self._pick_donated = picker(self._donated)
        self._jitted = jax.jit(jaxpr_as_fun(forward), donate_argnums=tuple(self._donated))
        self._simple_writes = all(type(target) is Cell for target in recording.written)

    def lower(self) -> Any:
        """The program as `jax.stages.Lowered`."""
        with x64():
            avals = [jax.ShapeDtypeStruct(i.shape, i.dtype, weak_type=i.weak) for i in self._inputs]
            return self._jitted.lower(*avals)

    def compile_with(self, compiler: Callable[[Any], Any], lowered: Any) -> None:
        """Take the executable that `compiler` gives for the lowered program."""
        with x64():
            numbers = [i for i, one in enumerate(self._inputs) if one.kind in ("hyper", "random")]
            self._executable = direct(compiler(lowered), numbers)
        if self.assumed is not None:
            self._executable = self.assumed.guarded(self._executable)

    def describe(self) -> dict[str, Any]:
        """What the program lifted, writes, donates and is guarded by."""
        lifted: dict[str, list[str]] = {}
        for one in self._inputs:
            lifted.setdefault(_SPOKEN[one.kind], []).append(one.name)
        return {
            "calls": self.calls,
            "lifted": lifted,
            "written": self._n_written,
            "donated": len(self._donated),
            "rebound": [place.holder.name(place.key) for place, _ in self.recording.rebound],
            "assumed": self.assumed.lines() if self.assumed else [],
            "hits": self.assumed.hits if self.assumed else 0,
            "misses": self.assumed.misses if self.assumed else 0,
            "guards": sorted({guard.guarded for guard in self.recording.guards}),
        }

    # Guards ---------------------------------------------------------------------------------------

    def failing(self, leaves: list[Any]) -> Any:
        """The first guard that does not hold, or None."""
        for guard in self.guards:
            if not guard.holds():
                return guard
        for guard in self._host_guards:
            if not guard.holds_for(leaves):
                return guard
        extended = leaves
        if self.recording.implicit:
            extended = list(leaves)
            for source in self.recording.implicit:
                found = source.find(leaves)
                if found is None:
                    return source
                extended += found
        return self._failing_alias(leaves, extended)

    def _failing_alias(self, leaves: list[Any], extended: list[Any]) -> Any:
        pinned = self.recording.pinned
        for index, (cell, offset) in pinned.items():
            leaf = leaves[index]
            if leaf.untyped_storage().cell is not cell or leaf.storage_offset() != offset:
                return _Alias(f"argument {index} was part of the function's own state")
        for index, expected in self.recording.stored.items():
            if form(leaves[index]) != expected:
                return _Alias(
                    f"argument {index} lies at another place of its storage, or in a storage of "
                    "another shape, and the function asks where"
                )
        for index, tensor in self.recording.pinned_hosts:
            if not leaves[index].is_set_to(tensor):
                return _Alias(f"argument {index} was a variable of the function, too")
        if not self._n_written:
            return None
        pinned_cells = {cell for cell, _ in pinned.values()}
        cells = [leaf.untyped_storage().cell if is_tensor(leaf) else None for leaf in extended]
        given, handed = set(cells[: len(leaves)]), set(cells[len(leaves) :])
        if not self._state.isdisjoint((given - pinned_cells) | handed):
            return _Alias("an argument shares memory with the function's own state")
        if handed:
            handed.discard(None)
            if not handed.isdisjoint(given) or (
                sharing(extended[len(leaves) :]) != self.recording.sharing
            ):
                return _Alias("tensors of the function's own state share memory")
        return None

    # Calls ----------------------------------------------------------------------------------------

    def __call__(self, leaves: list[Any]) -> Any:
        """Run on the leaves of a call's arguments."""
        self.calls += 1
        for optimizer in self._optimizers:  # what a scheduler looks at before it warns
            optimizer._opt_called = True
        if self.recording.implicit:
            leaves = list(leaves)
            found = [source.find(leaves) for source in self.recording.implicit]
            leaves += [leaf for one in found if one is not None for leaf in one]
        if self._backward is None:
            outputs = self._run(leaves)
            return self._finish(outputs, leaves, {})
        return self._call_differentiable(leaves)

    def _run(self, leaves: list[Any]) -> list[Array]:
        recording = self.recording
        arrays = list(map(_array, self._cells))
        for position, source in self._others:
            arrays.insert(position, source(leaves))
        if self._donated:
            protect(arrays, self._donated, self._pick_donated)
        outputs = self._executable(arrays)
        recording.checks.look(outputs, self._n_written)
        self._write(outputs, leaves)
        return outputs

    def _write(self, outputs: list[Array], leaves: list[Any]) -> None:
        recording = self.recording
        if self._simple_writes:
            for cell, array in zip(recording.written, outputs, strict=False):
                cell.array = array
        else:
            for target, array in zip(recording.written, outputs, strict=False):
                if type(target) is Cell:
                    target.array = array
                else:
                    if target < recording.count and target not in recording.stored:
                        write(unrepeated(leaves[target]), array)
                    else:
                        leaves[target].untyped_storage().cell.array = array
                    increment_version(leaves[target])
        if self._handles:
            increment_version(self._handles)
        if recording.draws:
            rng.state.take(recording.draws)
        if recording.seeded is not None:
            rng.state.restore(*recording.seeded)

    def _finish(
        self, arrays: list[Array], leaves: list[Any], ready: dict[int, torch.Tensor]
    ) -> Any:
        recording = self.recording
        outputs = Outputs(arrays[self._n_written :], leaves)
        for target, description in recording.gradients:
            tensor = target.build(outputs)
            tensor.grad = None if description is None else description.build(outputs)
        for cell, output in recording.survivors:
            cell.array = outputs.arrays[output]
        for holder, key, value in recording.effects:
            holder.put(key, value)
        assigned = [
            (place, unflatten_tensors([d.build(outputs) for d in descriptions], place.spec_after))
            for place, descriptions in recording.rebound
        ]
        for place, value in assigned:
            place.holder.put(place.key, value)
        for tensor, flag in recording.flags:
            tensor.requires_grad_(flag)
        results = [
            ready[i] if i in ready else description.build(outputs)
            for i, description in enumerate(recording.results)
        ]
        if recording.shells is not None:
            results = recording.shells.closed(results)
        return self._rebuild(results)

    def _call_differentiable(self, leaves: list[Any]) -> Any:
        recording, backward = self.recording, self.recording.backward
        assert backward is not None
        kept: list[list[Array]] = []

        def call() -> tuple[list[torch.Tensor], list[Array]]:
            arrays = self._run(leaves)
            kept.append(arrays[: recording.n_outputs])
            outputs = Outputs(arrays[self._n_written : recording.n_outputs], leaves)
            results = [recording.results[i].build(outputs) for i in backward.outputs]
            return results, list(arrays[recording.n_outputs :])

        given = Outputs([], leaves)
        targets = [receiver.build(given) for receiver in backward.receivers]
        carrying = Replay.apply(call, self._backward, *targets)
        return self._finish(kept[0], leaves, dict(zip(backward.outputs, carrying, strict=True)))


class _Alias:
    def __init__(self, reason: str) -> None:
        self.reason = reason

    def why(self) -> str:
        return self.reason


def _taking(late: Any, needed: list[int]) -> Callable[..., Any]:
    """The backward as a function of the residuals and all incoming gradients."""
    run = jax.jit(jaxpr_as_fun(late))
    return lambda residuals, incoming: run(*residuals, *(incoming[i] for i in needed))


def _source(one: Input) -> Any:
    """A cell, or a function from the call's leaves to the array."""
    source = one.source
    if one.kind == "cell":
        return source
    if one.kind == "argument":
        return lambda leaves: read(leaves[source])
    if one.kind == "repeated":
        return lambda leaves: read(unrepeated(leaves[source]))
    if one.kind == "handed":
        return lambda leaves: leaves[source].untyped_storage().cell.array
    if one.kind == "host":
        return lambda leaves: host_array(source)
    if one.kind == "host argument":
        return lambda leaves: host_array(leaves[source])
    if one.kind == "hyper":
        return lambda leaves: np.float64(source())
    return lambda leaves: rng.pack(rng.state.seed, rng.state.offset)
