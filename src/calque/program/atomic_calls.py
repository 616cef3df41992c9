"""Makes each call of a program atomic: either all of its changes happen, or none.

Signal handlers wait for the end of a step (`device.runtime.interrupts`), and so do other threads
that read or change the same state (`call_serialization`); an error of the program changes nothing
(`execution`).
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any, Generic, TypeVar

from jax import Array
from jax.errors import JaxRuntimeError

from calque.device.memory import rng
from calque.device.memory.cell import Cell
from calque.device.runtime import threads
from calque.errors.handlers import settles
from calque.program.call_serialization import Turn, set_array
from calque.program.execution import Execution, cause_of

Call = TypeVar("Call")
_nowhere: deque[None] = deque(maxlen=0)
_SLOTS = repeat("array")
_turn, _present = threads.turn, threads.present


class Stepping(Generic[Call]):
    """A compiled program that changes state; subclasses define what it reads and changes.

    Attributes:
        execution: the compiled program.
        may_raise: whether it calls code that may raise.
        donating: whether the arrays that it replaces are donated.
        gather: returns the arguments of the program for a call.
        draws: the number of random draws.
        random: the indexes of its arguments that are the random state.
        fixed_targets: the cells for the first outputs, if they are the same in each call.
        traced: whether its calls depend on Python state, which a trace may change.
    """

    execution: Execution
    may_raise: bool
    donating: bool
    gather: Callable[[Call], list[Any]]
    draws: int
    random: Sequence[int]
    fixed_targets: Sequence[Cell] = ()
    traced: bool

    def reads(self, call: Call) -> Sequence[Cell]:
        """Returns the cells from which the inputs are read."""
        raise NotImplementedError

    def changes(self, call: Call) -> Sequence[Cell]:
        """Returns the distinct cells that the call changes."""
        raise NotImplementedError

    def check(self, call: Call) -> None:
        """Raise `Stale` if other threads have changed what the call depends on."""

    def look(self, call: Call, outputs: list[Array]) -> None:
        """Raise the errors of the program's own checks."""
        raise NotImplementedError

    def targets(self, call: Call) -> Sequence[Cell]:
        """Returns the cells to which the first outputs are written, new ones for outputs that
        `finish` writes.
        """
        raise NotImplementedError

    def finish(self, call: Call, outputs: list[Array]) -> Any:
        """Change parts of cells and Python objects; returns the call's result."""
        raise NotImplementedError

    def failed(self, error: RuntimeError) -> BaseException:
        """Returns the error to raise for an error of the program."""
        return cause_of(error)

    @settles
    def step(self, call: Call) -> Any:
        """Run the program for a call, and make its changes."""
        done: list[list[Array]] = []
        turn = random = result = None
        try:
            if self.draws:
                random = rng.state.take(self.draws)
            with _turn:
                # Callbacks of the program may run in another thread, and wait for this one.
                if len(_present) < 2 and not self.may_raise:
                    self._run(call, self.gather(call), random, done, None)
            if not done:
                turn = Turn(self.changes(call))
                arrays = turn.take(
                    self.reads(call), self.donating, self.traced, partial(self.gather, call)
                )
                self.check(call)
                self._run(call, arrays, random, done, turn)
        finally:
            try:
                if done:
                    result = self.finish(call, done[0])
                elif random is not None:
                    rng.state.give_back(random, self.draws)
            finally:
                if turn is not None:
                    turn.give_back()
        return result

    def _run(
        self, call: Call, arrays: list[Any], random: Any, done: list[Any], turn: Turn | None
    ) -> None:
        if random is not None:
            for place in self.random:
                arrays[place] = rng.pack(*random)
        cells = self.fixed_targets or self.targets(call)
        put = map(setattr, cells, _SLOTS, chain.from_iterable(done))
        if turn is not None:
            put = map(set_array, cells, chain.from_iterable(done))
        try:
            results, gives_away = self.execution.started(arrays)
            if not gives_away:
                results = [*results]
                self.execution.wait(results[0])
                self.look(call, results[0])
                if turn is not None:
                    turn.close()
            # One call of C code runs the program and writes its results, so that an exception set
            # by another thread is raised before or after all of it.
            _nowhere.extend(chain(map(done.append, results), put))
        except JaxRuntimeError as error:
            raise self.failed(error) from None
