"""Runs an executable such that no data is lost in case of an error. A failed program has already
deleted its donated arguments. So programs that may raise (`jaxprs.may_raise`) get no donated
arguments, and calque waits for their results. XLA reports a lack of memory late, when donated
arguments are lost. This nearly always happens in the first call, so that call works on copies and
is waited for; a program that needs more memory than exists (see `memory_need`) is not started.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

import jax
import numpy as np
from jax import Array

from calque.device.memory.cell import x64
from calque.device.runtime import callbacks
from calque.device.runtime.placement import spread
from calque.device.runtime.sizes import as_out_of_memory
from calque.program.direct_call import Call, Direct, RawExecutable
from calque.program.donation import picker, protect
from calque.program.memory_need import Need

_first = itemgetter(0)


class Execution:
    """A compiled program.

    Args:
        compiled: the program, with flat arguments and results.
        program: calls the compiled program.
        donated: the indexes of the donated arguments.
        may_raise: whether it calls code that may raise; then nothing is donated.

    Attributes:
        call: runs a program that changes nothing; see `direct_call`.
        pick: picks the donated arguments.
        is_tight: returns True if too little memory is left for it; None if this is not known.
    """

    def __init__(
        self,
        compiled: jax.stages.Compiled,
        program: Direct,
        donated: Sequence[int],
        may_raise: bool,
    ) -> None:
        self._start = program.start
        self.call: Call = program.call
        self._bare = program.bare
        self._may_raise = may_raise
        self._donated = donated
        self.pick: Callable[[list[Array]], tuple[Array, ...]] = picker(donated)
        self._need = Need(compiled)
        self.is_tight: Callable[[], bool] | None = self._need.is_tight
        self._proven = not donated
        if self._need.is_too_large:
            self._start = self.call = self._need.refuse

    @property
    def bare(self) -> RawExecutable | None:
        """The executable itself, once calls need no precautions; None until then."""
        if self._may_raise or not self._proven:
            return None
        return None if self._need.is_too_large else self._bare

    def started(self, arrays: list[Any]) -> tuple[Iterator[list[Array]], bool]:
        """Returns the program, ready to run.

        Args:
            arrays: the arguments; only this list and the cells may refer to donated ones.

        Returns:
            An iterator that runs the program and yields the results as its only item; and whether
            arrays are donated, so that the results must not be lost.
        """
        if not self._donated:
            return self._start(arrays), False
        protect(arrays, self._donated, self.pick)
        if self._proven and (self.is_tight is None or not self.is_tight()):
            return self._start(arrays), True
        held = self._hold(arrays)
        return map(_first, zip(self._start(arrays), repeat(held))), False

    def wait(self, outputs: list[Array]) -> None:
        """Wait for the results of a program that may have failed.

        Raises:
            JaxRuntimeError: it has failed (see `cause_of`).
        """
        if self._may_raise or not self._proven:
            jax.block_until_ready(outputs)
            self._proven = True

    def _hold(self, arrays: list[Any]) -> Any:
        """Make the program work on copies of its arguments."""
        if (
            jax.default_backend() == "cpu" and not spread.exists
        ):  # XLA copies arrays that have other references
            return list(map(np.asarray, self.pick(arrays)))
        originals = self.pick(arrays)
        with x64():
            for index in self._donated:
                arrays[index] = jax.numpy.array(arrays[index], copy=True)
        return originals


def cause_of(error: RuntimeError) -> BaseException:
    """Returns the cause of a program's error: a callback's error, or out of memory."""
    return callbacks.raised(error) or as_out_of_memory(error)
