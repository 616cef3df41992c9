"""Checks of values in a program: outputs that are read before anything is written."""

from dataclasses import dataclass, field
from typing import Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.device.kernels.trace_checks import Failure
from calque.program.lifting import Lifting


class CheckedOutputs(Protocol):
    """Collects the outputs of a program."""

    def add(self, array: Array) -> int:
        """Adds an array; returns its index."""
        ...


@dataclass
class Checks:
    """The checks of a program, in the order in which the function would raise.

    Attributes:
        failures: the checks, without their traced arrays.
        flags, values: the outputs (after those that are written) with the failed checks and values.
    """

    failures: list[Failure] = field(default_factory=list)
    flags: int = 0
    values: int = 0

    @classmethod
    def of(cls, lifting: Lifting, outputs: CheckedOutputs) -> "Checks":
        """Returns the checks that a trace has collected, and ends the collection."""
        failures, lifting.failures = lifting.failures, None
        if not failures:
            return cls()
        return cls(
            [Failure(None, None, f.error, f.origin) for f in failures],
            outputs.add(jnp.stack([f.failed for f in failures])),
            outputs.add(jnp.stack([f.value for f in failures])),
        )

    @property
    def looks(self) -> bool:
        """Returns True if outputs must be read before anything is written."""
        return bool(self.failures)

    def look(self, outputs: list[Array], first: int) -> None:
        """Raise the error of the first failed check; `first` is the index of output 0."""
        if not self.failures:
            return
        failed = np.asarray(outputs[first + self.flags])
        if failed.any():
            index = int(failed.argmax())
            value = int(np.asarray(outputs[first + self.values])[index])
            raise self.failures[index].exception(value)
