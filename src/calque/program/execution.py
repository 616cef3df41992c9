"""Starts an executable such that an error loses nothing. A program with donated arguments has
deleted them when it fails. So programs that may raise (`jaxprs.may_raise`) get no donated
arguments, and calque waits for their results. XLA reports a lack of memory late, when donated
arguments are lost. Nearly always it occurs at the first call, which therefore works on copies and
is waited for; a program that needs more memory than exists (see `memory`) is not started.
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
from calque.program.direct_call import Bare, Call, Direct
from calque.program.donation import picker, protect
from calque.program.memory_need import Need

_first = itemgetter(0)


class Execution:
    """A compiled program.

    Args:
        compiled: the program, its arguments and results flat.
        program: what calls it.
        donated: the indexes of those that it is given the memory of.
        may_raise: whether it may fail by what it calls; it is given nothing then.

    Attributes:
        call: runs a program that changes nothing; see `direct_call`.
        pick: takes the arguments that it is given the memory of out of all.
        is_tight: tells whether there is too little memory left for it; None where nobody knows.
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
    def bare(self) -> Bare | None:
        """The executable itself, once calls need no supervision; None until then."""
        if self._may_raise or not self._proven:
            return None
        return None if self._need.is_too_large else self._bare

    def started(self, arrays: list[Any]) -> tuple[Iterator[list[Array]], bool]:
        """Returns the program, ready to run.

        Args:
            arrays: the arguments; nothing but this list and the cells may hold those donated.

        Returns:
            An iterator that runs the program when it is asked for the results, its only item; and
            whether it gives the arrays away, so that the results must not be lost.
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
            JaxRuntimeError: it has (see `cause_of`).
        """
        if self._may_raise or not self._proven:
            jax.block_until_ready(outputs)
            self._proven = True

    def _hold(self, arrays: list[Any]) -> Any:
        """Make the program work on copies of its arguments."""
        if (
            jax.default_backend() == "cpu" and not spread.exists
        ):  # XLA copies what is visible to others
            return list(map(np.asarray, self.pick(arrays)))
        originals = self.pick(arrays)
        with x64():
            for index in self._donated:
                arrays[index] = jax.numpy.array(arrays[index], copy=True)
        return originals


def cause_of(error: RuntimeError) -> BaseException:
    """Returns the error that a program's error represents: that of a callback, or out of memory."""
    return callbacks.raised(error) or as_out_of_memory(error)
