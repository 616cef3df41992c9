"""A program: a jaxpr, the sources of its inputs and the sinks of its first outputs.

`calque.jit` and the backend of `torch.compile` make programs from their traces (`lifted`), and add
their own parts: guards, results, gradients. From the jaxpr on, they share everything: donation,
placements, lowering, compiling, running as one step (`stepping`).
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jax.extend.core import ClosedJaxpr
from jax.sharding import Sharding

from calque.device.memory.cell import Cell, x64
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
from calque.program.stepping import Call, Stepping

_UNCHANGED: Mapping[int, tuple[int, ...]] = MappingProxyType({})


class Program(Stepping[Call]):
    """The base of every compiled program (see the module).

    Attributes:
        inputs: with the source of each.
        sinks: where the first outputs go.
        donated: the inputs whose memory the program is given.
        whole: the placement of what has none; None where nothing has one.
        moved_state: whether state was spread to be where the rest is (see `settled`).
        equal: the inputs and outputs that are passed once; None if there are none.
    """

    inputs: Sequence[Input]
    sinks: Sequence[Sink]
    donated: list[int]
    equal: Equal | None = None

    def form(
        self, jaxpr: ClosedJaxpr, inputs: Sequence[Input], sinks: Sequence[Sink], keeps: bool
    ) -> None:
        """Set the jaxpr.

        Args:
            jaxpr: what the program computes.
            inputs, sinks: see the class.
            keeps: whether everything must stay as it is until the results have been looked at.
        """
        self._jaxpr = jaxpr
        self.inputs, self.sinks = inputs, sinks
        self.may_raise: bool = may_raise(jaxpr.jaxpr)
        memories = {sink.memory for sink in sinks} - {None}
        if keeps or self.may_raise:  # what a failed program would have written stays
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
            cells: of the state that the program reads or writes.
            placements: of the inputs.
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

    def lowered(self, jaxpr: ClosedJaxpr, turned: Mapping[int, Any] = _UNCHANGED) -> Any:
        """Returns the program as `jax.stages.Lowered`.

        Args:
            jaxpr: what it was formed of, or what computes the same.
            turned: the inputs that come with their axes in another order, and that order.
        """
        with x64():
            given = avals(self.inputs, self._placements, self.whole, turned)
            if self.equal is not None:
                jaxpr = self.equal.shortened(jaxpr)
                given = [given[index] for index in self.equal.inputs]
            return lowered(
                on_one_mesh(jaxpr, self.whole),
                given,
                donate_argnums=tuple(map(self.position, self.donated)),
                out_shardings=self._pinned,
                keep_unused=True,
            )

    @property
    def passed(self) -> Sequence[Input]:
        """The inputs that are passed to the executable."""
        if self.equal is None:
            return self.inputs
        return [self.inputs[index] for index in self.equal.inputs]

    def position(self, index: int) -> int:
        """Returns where an input is among those `passed`."""
        return index if self.equal is None else self.equal.position(index)

    def pass_once(self, equal: Equal) -> None:
        """Pass equal inputs once; what several cells hold is not given to the program."""
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
