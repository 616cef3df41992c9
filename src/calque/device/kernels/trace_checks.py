"""Checks of values in a trace: indices in bounds, nonzero divisors.

In eager calls, the host checks the values and raises before the operator runs. A trace has no
values. With `calque.jit(fn, checks=True)`, each check becomes an output of the program, and the
first failed check raises after the program has run, before any state changes. Checks in the user's
own code are always outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.device.memory.cell import active, x64
from calque.errors import Origin, user_origin


@dataclass(frozen=True)
class Failure:
    """A check of a trace.

    Attributes:
        failed: whether it failed, a traced boolean; None once the trace is over.
        value: the offending value, a traced int64; None once the trace is over.
        error: returns the exception that PyTorch raises in eager mode for a value.
        origin: the user's line.
    """

    failed: Array | None
    value: Array | None
    error: Callable[[int], Exception]
    origin: Origin | None

    def exception(self, value: int) -> Exception:
        """Returns the exception for an offending value, at the user's line."""
        error = self.error(value)
        return type(error)(f"{self.origin}: {error}") if self.origin else error


def looking() -> bool:
    """Returns True if a check can be reported, to the caller or to a trace that collects checks."""
    return active.trace is None or active.trace.looking


def reported() -> bool:
    """Returns True if the checks that a trace collects are read after its program has run."""
    return active.trace is not None and active.trace.failures is not None


def collect(
    failed: Array, values: Array, error: Callable[[int], Exception], always: bool = False
) -> None:
    """Record a check in a trace, which fails if any of `failed` (booleans of the shape of `values`)
    is True.

    With `always`, also in a trace without value checks.
    """
    trace = active.trace
    if trace is None or trace.failures is None or not (always or trace.looking):
        return
    if failed.size:
        with x64():
            value = values.reshape(-1)[jnp.argmax(failed)].astype(np.int64)
        trace.failures.append(Failure(failed.any(), value, error, user_origin()))
