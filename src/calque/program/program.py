"""Programs: a jaxpr, the sources of its inputs and the sinks of its first outputs.

`calque.jit` and the backend of `torch.compile` create programs from their traces (`lifted`), and
add their own parts: guards, results, gradients. From the jaxpr on, they share everything: donation,
placements, lowering, compiling, and running as one step (`atomic_calls`).
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jax.extend.core import ClosedJaxpr
from jax.sharding import Sharding

from calque.device.memory.cell import Cell, x64
from calque.program.atomic_calls import Call, Stepping
from calque.program.compiler_options import schedule
from calque.program.direct_call import direct
from calque.program.equal_state import Equal
from calque.program.execution import Execution
from calque.program.jaxprs import may_raise
from calque.program.lifting import Input
from calque.program.lowering import lowered
from calque.program.other_devices import elsewhere, moving, on_one_mesh, results_elsewhere
from calque.program.pinning import Placements, avals, constraints, pinned, settled
from calque.program.sinks import CellSink, Sink
from calque.program.sources import RandomSource

_UNCHANGED: Mapping[int, tuple[int, ...]] = MappingProxyType({})


class Program(Stepping[Call]):
    """The base of every compiled program (see the module).

    Attributes:
        inputs: the inputs, with their sources.
        sinks: the sinks of the first outputs.
        donated: the inputs that are donated.
        whole: the placement for arrays without one; None if no array has one.
        moved_state: whether state was moved to the other arrays' devices (see `settled`).
        overwritten: further inputs that are donated, whose values do not matter.
        equal: the equal inputs and outputs, which are passed once; None if there are none.
    """

    inputs: Sequence[Input]
    sinks: Sequence[Sink]
    donated: list[int]
    overwritten: Sequence[int] = ()
    equal: Equal | None = None

    def form(
        self, jaxpr: ClosedJaxpr, inputs: Sequence[Input], sinks: Sequence[Sink], keeps: bool
    ) -> None:
        """Set the jaxpr.

        Args:
            jaxpr: the jaxpr.
            inputs, sinks: see the class.
            keeps: whether nothing may change until the results have been checked.
        """
        self._jaxpr = jaxpr
        self.inputs, self.sinks = inputs, sinks
        self.may_raise: bool = may_raise(jaxpr.jaxpr)
        memories = {sink.memory for sink in sinks} - {None}
        if keeps or self.may_raise:  # a failed program must not change state
            memories = set()
        self.donated = [i for i, one in enumerate(inputs) if one.source.memory in memories]
        self.donating: bool = bool(self.donated)
        self.random: list[int] = [
            i for i, one in enumerate(inputs) if isinstance(one.source, RandomSource)
        ]
        cells = [sink.cell for sink in sinks if isinstance(sink, CellSink)]
        self.fixed_targets: Sequence[Cell] = cells if len(cells) == len(sinks) else ()

    def place(self, cells: Iterable[Cell], placements: Placements) -> None:
        """Decide the placements of the arrays.

        Args:
            cells: the cells of the state that the program reads or writes.
            placements: the placements of the inputs.
        """
        self._placements = placements
        written = [sink.placement for sink in self.sinks]
        found = [*placements, *written, *constraints(self._jaxpr.jaxpr)]
        self.moved_state: bool
        self.whole: Sharding | None
        self.whole, self.moved_state = settled(cells, found)
        self._pinned = pinned(written, len(self._jaxpr.out_avals), self.whole)
        going = results_elsewhere(self._jaxpr.jaxpr, self.whole) | elsewhere(written, self.whole)
        self._moves = elsewhere(placements, self.whole), going
        if going:  # Python moves these results, and an exception of another thread may interrupt it
            self.donated, self.donating = [], False

    def lowered(self, jaxpr: ClosedJaxpr, turned: Mapping[int, Any] = _UNCHANGED) -> Any:
        """Returns the program as `jax.stages.Lowered`.

        Args:
            jaxpr: its jaxpr, or an equivalent one.
            turned: the inputs that are passed transposed, with their axis order.
        """
        with x64():
            given = avals(self.inputs, self._placements, self.whole, turned)
            if self.equal is not None:
                jaxpr = self.equal.shortened(jaxpr)
                given = [given[index] for index in self.equal.inputs]
            return lowered(
                on_one_mesh(jaxpr, self.whole),
                given,
                donate_argnums=(*map(self.position, self.donated), *self.overwritten),
                out_shardings=self._pinned,
                keep_unused=True,
                compiler_options=schedule(jaxpr.jaxpr),
            )

    @property
    def passed(self) -> Sequence[Input]:
        """The inputs that are passed to the executable."""
        if self.equal is None:
            return self.inputs
        return [self.inputs[index] for index in self.equal.inputs]

    def position(self, index: int) -> int:
        """Returns the index of an input among those `passed`."""
        return index if self.equal is None else self.equal.position(index)

    def pass_once(self, equal: Equal) -> None:
        """Pass equal inputs once. An array that several cells share is not donated."""
        self.equal = equal
        self.donated = [index for index in self.donated if index not in equal.members]
        self.donating = bool(self.donated)

    def run_by(self, compiled: Any) -> None:
        """Set the executable."""
        with x64():
            numbers = [i for i, one in enumerate(self.inputs) if one.source.is_number]
            program = moving(direct(compiled, list(map(self.position, numbers))), *self._moves)
            if self.equal is not None:
                program = self.equal.apart(program)
            self.execution: Execution = Execution(compiled, program, self.donated, self.may_raise)
