"""Numbers of param groups as arguments of a program, which are read again if a group was
changed.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
from jax import Array
from torch.optim import Optimizer

from calque.jitting.guards import OptimizerGuard
from calque.jitting.numbers import FLOATS
from calque.jitting.optimizer_numbers import HyperParameter
from calque.program.sources import NumberSource, Source
from calque.state.versions import version_of

_param_groups = attrgetter("param_groups")


def is_of_group(source: Source) -> bool:
    """Returns True if a source is a number in an optimizer's param group."""
    return type(source) is NumberSource and type(source.number) is HyperParameter


class SettingNumbers:
    """The settings of optimizers, and their numbers in each call.

    Args:
        guard: the guard of the optimizers' settings; None if there are no optimizers.
        sources: the sources of the numbers, for which `is_of_group` is True.
        placed: converts them to arrays.

    Attributes:
        arrays: the numbers when they were last read.
        seen: the versions of the param groups at that time; None to read them in each call.
    """

    def __init__(
        self,
        guard: OptimizerGuard | None,
        sources: Sequence[NumberSource],
        placed: Sequence[Callable[[Any], Array]],
    ) -> None:
        self._guard = guard
        self._numbers: list[Any] = [source.number for source in sources]
        self._placed = placed
        self.optimizers: list[Optimizer] = [] if guard is None else guard.optimizers
        self.arrays: list[Array] = []
        self.seen: list[int] | None = None

    @property
    def are_given(self) -> bool:
        """Returns True if there are any numbers."""
        return self._guard is not None or bool(self._numbers)

    def read(self) -> bool:
        """Read all numbers; returns True if the program can still be used."""
        groups = list(chain.from_iterable(map(_param_groups, self.optimizers)))
        versions = None if version_of is None else list(map(version_of, groups))
        if self._guard is not None and not self._guard.holds():
            return False
        values = [number() for number in self._numbers]
        arrays = zip(self._placed, map(np.float64, values))
        self.arrays = [place(value) for place, value in arrays]
        known = {id(group) for group in groups}
        lasting = all(id(number.group) in known for number in self._numbers)
        unchanging = all(type(value) in FLOATS or type(value) is int for value in values)
        self.seen = versions if lasting and unchanging else None
        return True
