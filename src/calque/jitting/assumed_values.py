"""Values that a program assumes, which are observed in an eager call and compared in each call.

A trace does not know the values that the host reads. A `ReadObserver` records those of an eager
call. `AssumedValues` return them in a trace if the same code reads the same kind of value. Each
such value becomes an output of the program, and `Assumed` compares it before anything is written.
The first value depends on no assumption, the second on the first, and so on, so if all are equal,
the program did what the function does.
"""

import operator
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.errors import JaxRuntimeError
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from calque.device.memory.cell import active
from calque.device.memory.host_reads import HostRead, NeedsValue, NeverServed, UnservableCall
from calque.errors import preparing_errors
from calque.errors.frames import caller_frame, is_library, is_packages, is_standard
from calque.jitting.result_descriptions import Describer
from calque.program.compile_flags import announced_as_compiling, compiling_flag
from calque.program.value_checks import Checks

_LARGEST = 1 << 22
"""The maximum number of bytes of values that a program may assume."""
_CLOSE = 1e-4


class ReadValue(NamedTuple):
    """A value that the host has read."""

    asked: HostRead
    value: np.ndarray

    def agrees(self, value: np.ndarray) -> bool:
        """Returns True if another value has the same bits."""
        return self.value.tobytes() == value.tobytes()

    def is_near(self, value: np.ndarray) -> bool:
        """Returns True if it is the same up to rounding, which differs between programs and eager
        calls.
        """
        if self.agrees(value):
            return True
        if not jnp.issubdtype(value.dtype, jnp.inexact):
            return False
        mine, other = self.value.astype(np.complex128), value.astype(np.complex128)
        finite = np.abs(other[np.isfinite(other)])
        least = 1e-6 * finite.max() if finite.size else 0.0
        return bool(np.allclose(mine, other, _CLOSE, least, equal_nan=True))


Observation = list[ReadValue]


class ReadObserver:
    """Records the values that the host reads in an eager call.

    Attributes:
        seen: the values, in order; None if they are too large to keep.
    """

    def __init__(self) -> None:
        self.seen: Observation | None = []
        self._bytes = 0

    def see(self, array: Array, use: str) -> None:
        """Record a value that is read."""
        self._bytes += array.nbytes
        if self._bytes > _LARGEST:
            self.seen = None
        if self.seen is not None:
            self.seen.append(ReadValue(HostRead.of(array, use), np.array(array)))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context manager in which the thread runs eagerly, but code takes the same branches as
        in a trace.
        """
        before, active.observer, active.inlining = active.observer, self, True
        handles = [
            # In an optimizer's step, a trace replaces its numbers, so the code must not branch
            # differently.
            register_optimizer_step_pre_hook(lambda *_: self._set_compiling(False)),
            register_optimizer_step_post_hook(lambda *_: self._set_compiling(True)),
        ]
        try:
            with announced_as_compiling():
                yield
        finally:
            active.observer, active.inlining = before, before is not None
            for handle in handles:
                handle.remove()

    def _set_compiling(self, compiling: bool) -> None:
        if active.observer is self:  # not a step in another thread
            compiling_flag(compiling)


class AssumedValues:
    """The values that a trace may assume, and those that it has assumed.

    Args:
        everywhere: whether values may be assumed in the user's own code too.
        observation: the observed values; None if there are none yet.

    Attributes:
        taken: the assumed values, each with its traced array.
        has_answered: whether any value was assumed.
        unmet: the exception that stopped the trace, which other code may have caught.
    """

    def __init__(self, everywhere: bool, observation: Observation | None) -> None:
        self._everywhere = everywhere
        self._closed = False
        self._expected: dict[HostRead, deque[ReadValue]] = defaultdict(deque)
        for seen in observation or ():
            self._expected[seen.asked].append(seen)
        self.taken: list[tuple[ReadValue, Array]] = []
        self.has_answered: bool = False
        self.unmet: UnservableCall | None = None

    def value(self, array: Array, use: str, error: Callable[[], Exception]) -> np.ndarray | None:
        """Returns the value to assume; None if none may be assumed.

        Raises:
            NeedsValue: it may be assumed, but was not observed.
            NeverServed: it is needed in the backward pass of the function's results.
        """
        if not self.allowed(caller_frame().f_code.co_filename):
            return None
        if self._closed:  # a backward pass outside, which runs after the program
            self.unmet = NeverServed(str(_prepared(error)))
            raise self.unmet
        asked = HostRead.of(array, use)
        expected = self._expected[asked]
        if not expected:
            self.unmet = NeedsValue(_prepared(error))
            raise self.unmet
        seen = expected.popleft()
        self.taken.append((seen, array))
        self.has_answered = True
        return seen.value.copy()

    def allowed(self, file: str) -> bool:
        """Returns True if code in this file may get assumed values."""
        return self._everywhere or is_library(file)

    def shown(self, file: str) -> bool:
        """Returns True if the text of a tensor for code in this file contains its values.

        It does not for debuggers and loggers, unless values may be assumed everywhere.
        """
        return self.allowed(file) and (self._everywhere or not is_standard(file))

    def refused(self, error: Exception) -> BaseException:
        """Returns the error for an action that no program can repeat; in a package's code, a
        signal.
        """
        if not is_packages(caller_frame()):
            return error
        self.unmet = NeverServed(str(error))
        return self.unmet

    def check_met(self) -> None:
        """Raise again the exception that stopped the trace."""
        if self.unmet is not None:
            raise self.unmet

    def checked_by(self, checks: Checks, describer: Describer) -> "Checks | Assumed":
        """Returns the program's checks, including those of assumed values, and ends the
        assumptions.
        """
        self._closed = True
        taken, self.taken = self.taken, []
        if not taken:
            return checks
        outputs = [describer.add(array) for _, array in taken]
        return Assumed([seen for seen, _ in taken], outputs, checks)


def _prepared(error: Callable[[], Exception]) -> Exception:
    """Returns an error that represents a signal, and may never be raised."""
    with preparing_errors():
        return error()


class WrongAssumption(UnservableCall):
    """Signals that a program found values that differ from those that it assumes.

    Attributes:
        observed: the values that were read, as the program computed them.
        certain: how many of them, from the first, are the function's values.
    """

    def __init__(self, observed: Observation, certain: int) -> None:
        super().__init__(
            f"a value differs from what the program assumes: {observed[certain - 1].asked}"
        )
        self.observed = observed
        self.certain = certain

    @property
    def asked(self) -> HostRead:
        """The read of the first value that differs."""
        return self.observed[self.certain - 1].asked


class Assumed:
    """The assumptions of a program, which are compared before its checks.

    Attributes:
        expected: the values, in the order in which they are read.
        hits, misses: the numbers of calls in which all values were right, and in which some were
            not.
    """

    looks = True

    def __init__(self, expected: Observation, outputs: list[int], checks: Checks) -> None:
        self.expected = expected
        self.hits: int = 0
        self.misses: int = 0
        self._bytes = [seen.value.tobytes() for seen in expected]
        self._outputs = outputs
        self._checks = checks

    def look(self, outputs: list[Array], first: int) -> None:
        """Compare the outputs of a call, from index `first`.

        Raises:
            WrongAssumption: a value differs.
        """
        arrays = [outputs[first + index] for index in self._outputs]
        try:
            for array in arrays:
                array.copy_to_host_async()
            values = [np.asarray(array) for array in arrays]
        except JaxRuntimeError as error:
            raise self.failed(error) from None
        found = [value.tobytes() for value in values]
        if found != self._bytes:
            self.misses += 1
            certain = list(map(operator.eq, found, self._bytes)).index(False) + 1
            pairs = zip(self.expected, values, strict=True)
            raise WrongAssumption([ReadValue(s.asked, v.copy()) for s, v in pairs], certain)
        self._checks.look(outputs, first)
        self.hits += 1

    def failed(self, error: Exception) -> NeedsValue:
        """Returns the error to raise for an error of the program, which wrong values may have
        caused.
        """
        self.misses += 1
        return NeedsValue(error)

    def allows(self, missed: WrongAssumption) -> bool:
        """Returns True if this program's assumptions match the values that another program
        found.
        """
        found = missed.observed[: missed.certain]
        return all(
            mine.asked == other.asked and mine.agrees(other.value)
            for mine, other in zip(self.expected, found)
        )

    def lines(self) -> list[str]:
        """Lists the distinct assumptions."""
        return list(dict.fromkeys(str(seen.asked) for seen in self.expected))


def merged(
    observation: Observation, missed: WrongAssumption, same_call: bool = False
) -> Observation | None:
    """Returns an observation with the values that a program computed; None if they differ.

    Args:
        observation: the values observed in an eager call.
        missed: the values that a program found.
        same_call: whether both belong to the same call, so that they differ only by rounding.
    """
    places: dict[HostRead, deque[int]] = defaultdict(deque)
    for index, seen in enumerate(observation):
        places[seen.asked].append(index)
    result = list(observation)
    for index, seen in enumerate(missed.observed):
        waiting = places[seen.asked]
        place = waiting.popleft() if waiting else None
        certain = index < missed.certain
        if place is not None and ((same_call and certain) or result[place].is_near(seen.value)):
            result[place] = seen
        elif certain:
            return None
    return result
