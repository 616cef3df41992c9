"""Run a compiled program: gather its inputs, donate what it may, write its outputs back."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from jax import Array
from jax.extend.core import jaxpr_as_fun
from torch.autograd.graph import increment_version

from calque.device import rng
from calque.device.call import host_array
from calque.device.cell import Cell, read, write, x64
from calque.run.differentiable import Replay
from calque.run.jaxprs import prune, split
from calque.run.lifting import Input
from calque.run.record import Recording
from calque.run.results import Argument, Outputs
from calque.run.signature import same_tree

_ALONE = 3
"""References to an array that only its cell holds: the cell's, the inputs' list's, the count's."""


_SPOKEN = {
    "cell": "state",
    "host": "CPU tensor",
    "hyper": "hyper-parameter",
    "random": "random state",
}


class Program:
    """One compiled form of a function, with its guards.

    Attributes:
        recording: what the trace found; its traced arrays are gone.
        lowered: the program before compilation.
        calls: how often it ran.
        single_use: whether the function left tensors behind that are not results, so that its next
            call has to be traced again.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.guards = recording.guards()
        self.calls = 0
        self.single_use = bool(recording.survivors)
        self._rebuild = same_tree(recording.spec)
        self._draws = recording.lifting.draws
        self._seeded = recording.lifting.final_random()
        self._n_written = len(recording.written)
        self._optimizers = list(recording.lending.optimizers)
        self._handles = [
            recording.witness.handles[cell]
            for cell in recording.written
            if cell in recording.witness.handles and cell not in recording.arguments
        ]
        self._prepare()

    def _prepare(self) -> None:
        recording, inputs = self.recording, self.recording.inputs
        backward = recording.backward
        self._backward: Callable[..., Any] | None = None
        if backward is None:
            forward, kept = prune(recording.jaxpr)
        else:
            slots = [i for i, one in enumerate(inputs) if one.kind == "incoming"]
            forward, late, kept = split(recording.jaxpr, slots, recording.n_outputs)
            self._backward = _taking(late, [inputs[slot].source for slot in slots])
        self._inputs = [inputs[i] for i in kept]
        self._sources = [_source(one, recording.arguments) for one in self._inputs]
        written = set(recording.written)
        held = set() if backward is None else written
        self._donated = [
            i
            for i, one in enumerate(self._inputs)
            if one.kind == "cell" and one.source in written and one.source not in held
        ]
        self._jitted = jax.jit(jaxpr_as_fun(forward), donate_argnums=tuple(self._donated))
        self._write_targets = [
            (cell, recording.arguments.get(cell)) for cell in recording.written
        ]
        self._simple_writes = not any(index is not None for _, index in self._write_targets)

    def lower(self) -> Any:
        """The program as `jax.stages.Lowered`."""
        with x64():
            avals = [
                jax.ShapeDtypeStruct(i.shape, i.dtype, weak_type=i.weak) for i in self._inputs
            ]
            return self._jitted.lower(*avals)

    def compile_with(self, compiler: Callable[[Any], Any], lowered: Any) -> None:
        """Take the executable that `compiler` gives for the lowered program."""
        with x64():
            self._executable = compiler(lowered)

    def describe(self) -> dict[str, Any]:
        """What the program lifted, writes, donates and is guarded by."""
        kinds: dict[str, int] = {}
        for one in self._inputs:
            is_argument = one.kind == "cell" and one.source in self.recording.arguments
            kind = "argument" if is_argument else _SPOKEN[one.kind]
            kinds[kind] = kinds.get(kind, 0) + 1
        return {
            "calls": self.calls,
            "lifted": ", ".join(f"{n} x {kind}" for kind, n in kinds.items()) or "nothing",
            "written": self._n_written,
            "donated": len(self._donated),
            "guards": sorted({type(guard).__name__ for guard in self.guards}),
        }

    # Guards ---------------------------------------------------------------------------------------

    def holds(self, leaves: list[Any]) -> bool:
        """Whether the program may serve a call."""
        return self.failing(leaves) is None

    def failing(self, leaves: list[Any]) -> Any:
        """The first guard that does not hold, or None."""
        for guard in self.guards:
            if not guard.holds():
                return guard
        for index, cell in self.recording.pinned:
            if leaves[index].untyped_storage().cell is not cell:
                return _Pinned(index)
        return None

    # Calls ----------------------------------------------------------------------------------------

    def __call__(self, leaves: list[Any]) -> Any:
        """Run on the leaves of a call's arguments."""
        self.calls += 1
        for optimizer in self._optimizers:  # what a scheduler looks at before it warns
            optimizer._opt_called = True
        if self._backward is None:
            outputs = self._run(leaves)
            return self._finish(outputs, leaves, {})
        return self._call_differentiable(leaves)

    def _run(self, leaves: list[Any]) -> list[Array]:
        arrays = [
            source.array if type(source) is Cell else source(leaves) for source in self._sources
        ]
        for index in self._donated:
            if sys.getrefcount(arrays[index]) > _ALONE:
                arrays[index] = _copy(arrays[index])
        with x64():
            outputs = self._executable(*arrays)
        self._write(outputs, leaves)
        return outputs

    def _write(self, outputs: list[Array], leaves: list[Any]) -> None:
        if self._simple_writes:
            for (cell, _), array in zip(self._write_targets, outputs, strict=False):
                cell.array = array
        else:
            for (cell, index), array in zip(self._write_targets, outputs, strict=False):
                if index is None:
                    cell.array = array
                else:
                    write(leaves[index], array)
                    increment_version(leaves[index])
        if self._handles:
            increment_version(self._handles)
        if self._draws:
            rng.state.take(self._draws)
        if self._seeded is not None:
            rng.state.restore(*self._seeded)

    def _finish(
        self, arrays: list[Array], leaves: list[Any], ready: dict[int, torch.Tensor]
    ) -> Any:
        outputs = Outputs(arrays[self._n_written :], leaves)
        for target, description in self.recording.gradients:
            tensor = leaves[target.index] if isinstance(target, Argument) else target.tensor
            tensor.grad = None if description is None else description.build(outputs)
        for cell, output in self.recording.survivors:
            cell.array = outputs.arrays[output]
        if self.recording.state.effects:
            self.recording.state.replay()
        results = [
            ready[i] if i in ready else description.build(outputs)
            for i, description in enumerate(self.recording.results)
        ]
        return self._rebuild(results)

    def _call_differentiable(self, leaves: list[Any]) -> Any:
        backward = self.recording.backward
        assert backward is not None
        kept: list[list[Array]] = []

        def call() -> tuple[list[torch.Tensor], list[Array]]:
            arrays = self._run(leaves)
            kept.append(arrays[: self.recording.n_outputs])
            outputs = Outputs(arrays[self._n_written : self.recording.n_outputs], leaves)
            results = [self.recording.results[i].build(outputs) for i in backward.outputs]
            return results, list(arrays[self.recording.n_outputs :])

        positions = {
            id(t): i
            for i, t in enumerate(self.recording.stand_ins)
            if isinstance(t, torch.Tensor) and i not in dict(self.recording.pinned)
        }
        targets = [leaves[positions[id(t)]] if id(t) in positions else t for t in backward.targets]
        carrying = Replay.apply(call, self._backward, *targets)
        return self._finish(kept[0], leaves, dict(zip(backward.outputs, carrying, strict=True)))


class _Pinned:
    def __init__(self, index: int) -> None:
        self.index = index

    def why(self) -> str:
        return f"argument {self.index} is another tensor of the function's own state"


def _taking(late: Any, needed: list[int]) -> Callable[..., Any]:
    """The backward as a function of the residuals and all incoming gradients."""
    run = jax.jit(jaxpr_as_fun(late))
    return lambda residuals, incoming: run(*residuals, *(incoming[i] for i in needed))


def _source(one: Input, arguments: dict[Cell, int]) -> Any:
    """A cell, or a function from the call's leaves to the array."""
    if one.kind == "cell":
        index = arguments.get(one.source)
        return one.source if index is None else lambda leaves: read(leaves[index])
    if one.kind == "host":
        tensor = one.source
        return lambda leaves: host_array(tensor)
    if one.kind == "hyper":
        return lambda leaves: np.float64(one.source())
    return lambda leaves: rng.pack(rng.state.seed, rng.state.offset)


def _copy(array: Array) -> Array:
    with x64():
        return jax.numpy.array(array, copy=True)
