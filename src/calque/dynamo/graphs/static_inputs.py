"""Inputs of a graph whose dtypes and shapes Dynamo does not guard.

Dynamo assumes that parameters and the state of optimizers do not change, and only compares their
identity. But `model.double()` keeps the tensors and changes their dtypes.
"""

from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any

import torch

_kind = attrgetter("dtype", "shape")


class StaticInputs:
    """The inputs of a graph that Dynamo marks as static."""

    def __init__(self) -> None:
        self._pick: Any = None
        self._kinds: list[Any] | None = None

    def remember(self, inputs: Sequence[Any]) -> None:
        """Store the dtypes and shapes of the inputs for the current program."""
        if self._kinds is None:
            marked = [i for i, value in enumerate(inputs) if _is_marked(value)]
            # So that it always returns a tuple.
            self._pick = itemgetter(*marked, marked[0]) if marked else None
        self._kinds = self.kinds(inputs)

    def kinds(self, inputs: Sequence[Any]) -> list[Any]:
        """Returns the dtypes and shapes of the inputs marked as static."""
        return [] if self._pick is None else [*map(_kind, self._pick(inputs))]

    def differ(self, inputs: Sequence[Any]) -> bool:
        """Returns True if the dtype or shape of one of them has changed since `remember`."""
        return self._pick is not None and self.kinds(inputs) != self._kinds


def _is_marked(value: object) -> bool:
    mark = getattr(value, "_dynamo_static_input_type", None)
    return isinstance(value, torch.Tensor) and mark == "guarded"
