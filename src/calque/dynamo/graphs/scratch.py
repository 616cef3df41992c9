"""Memory for the values that a graph writes to tensors on the CPU.

XLA writes to no memory but its own, so that these values are computed elsewhere, and copied. Large
memory that is asked of the system at each call takes longer than the copy, because the system
zeroes every page. So the program is given memory to write to, the same in each call, by donation.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Var

from calque.device.memory.host import copied
from calque.device.runtime.placement import host_has_default_device
from calque.program.jaxprs import build
from calque.program.lifting import Input
from calque.program.sources import Source

_SMALLEST, _MOST = 2**17, 2**28
"""In bytes. The C library keeps smaller pieces itself; a program keeps no more than the second."""


class ScratchSource(Source):
    """Memory for an output, whose values do not matter."""

    __slots__ = ()


class Scratch:
    """The memory of one program.

    Args:
        closed: the program.
        copied_first: how many of its first outputs are copied.
    """

    def __init__(self, closed: ClosedJaxpr, copied_first: int) -> None:
        found = enumerate(closed.out_avals[:copied_first] if host_has_default_device() else ())
        large = [(i, aval) for i, aval in found if _size(aval) >= _SMALLEST]
        totals = accumulate(_size(aval) for _, aval in large)
        chosen = [one for one, total in zip(large, totals, strict=True) if total <= _MOST]
        self._outputs = [index for index, _ in chosen]
        self._avals = [aval for _, aval in chosen]
        self._free: list[list[Array]] = []

    def __bool__(self) -> bool:
        return bool(self._outputs)

    def given_to(
        self, closed: ClosedJaxpr, inputs: Sequence[Input]
    ) -> tuple[ClosedJaxpr, list[Input]]:
        """Returns the program and its inputs with the memory as further inputs."""
        inner = closed.jaxpr
        added = [Input(ScratchSource(), a.shape, a.dtype, weak=False) for a in self._avals]
        variables = [Var(one.aval) for one in added]
        closed = build(closed, [*inner.invars, *variables], inner.outvars, inner.eqns)
        return closed, [*inputs, *added]

    def take(self) -> list[Array]:
        """Returns memory that no other call uses."""
        try:
            return self._free.pop()
        except IndexError:  # the first call, one of several at once, or the last one failed
            return [copied(np.empty(aval.shape, aval.dtype)) for aval in self._avals]

    def give_back(self, outputs: Sequence[Array]) -> None:
        """Keep the memory of the outputs, which have been copied, for the next call."""
        self._free[:] = [[outputs[index] for index in self._outputs]]


def _size(aval: object) -> int:
    return aval.size * aval.dtype.itemsize  # type: ignore[attr-defined]
