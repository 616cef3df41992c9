"""Programs specialized for values of tensors that repeat. A call with new values runs eagerly, and
is observed. The next call of its signature is traced for the observed values, which its program
compares in each call. If they differ, a program for other values is tried, then a trace for values
observed before; otherwise, the call runs eagerly and is observed again.
"""

import logging
import warnings
from collections.abc import Callable
from typing import Any

from calque.device.memory.host_reads import NeedsValue, NeverServed, UnservableCall
from calque.errors import CalqueError, EagerWarning, user_origin
from calque.errors.frames import is_library, raising_file
from calque.errors.handlers import is_of_handler
from calque.jitting.assumed_values import (
    AssumedValues,
    Observation,
    ReadObserver,
    WrongAssumption,
    merged,
)
from calque.jitting.program import JittedProgram
from calque.jitting.reachable import Reachable

logger: logging.Logger = logging.getLogger("calque.jit")

MOST_TRACES = 8
"""The maximum number of programs that a signature may be specialized to."""
_MAX_DEBT = 8
"""By how many the misses of a signature may exceed its hits."""
_MOST_UNMET = 3
_REMEMBERED = 8


class Eager:
    """Replaces the programs of a signature that runs eagerly from now on.

    It serves calls in which the modules are in the same training modes.
    """

    single_use = unverified = False
    assumed = None

    def __init__(self, fn: Callable[..., Any], why: str) -> None:
        self._fn = fn
        self._why = why
        self._modes = [(module, module.training) for module in Reachable(fn).modules]
        self.calls: int = 0

    def failing(self, leaves: list[Any], given: object = None) -> Any:
        """Returns itself if it cannot serve a call."""
        return None if all(m.training is mode for m, mode in self._modes) else self

    def fast_call(self, args: object, kwargs: object, key: object) -> None:
        """Returns None, because every call must be checked."""

    def why(self) -> str:
        """Returns why a call is not served."""
        return "modules switched between training and evaluation"

    def __call__(self, leaves: list[Any], given: Any = None) -> Any:
        """Run the function."""
        self.calls += 1
        args, kwargs = given
        return self._fn(*args, **kwargs)

    def describe(self) -> dict[str, Any]:
        """Like `JittedProgram.describe`, for calls that run eagerly."""
        return {"calls": self.calls, "eager": self._why}


class Signature:
    """The calls with one signature.

    Attributes:
        observations: the values that calls have read, the latest first.
        traces: the number of programs that were traced because values differed.
        debt: the recent excess of missed calls over served calls.
        unmet: the number of consecutive traces that read values that no eager call has read.
    """

    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self.traces = 0
        self.debt: int = 0
        self.unmet = 0
        self._hits = 0

    def missed(self, programs: list[Any]) -> None:
        """Record a call that no program could serve."""
        hits = sum(p.assumed.hits for p in programs if p.assumed is not None)
        self.debt = max(0, self.debt - max(0, hits - self._hits)) + 1
        self._hits = hits

    def remember(self, observation: Observation) -> None:
        """Record the values of a call."""
        self.observations.insert(0, observation)
        del self.observations[_REMEMBERED:]


class Specializing:
    """The signatures of one jitted function.

    Args:
        fn: the function.
        mode: whether values may be assumed; None for not in the user's own code.
        programs: its programs, by signature.
        make: traces and compiles a program, given a signature, the leaves and the structure of a
            call's arguments, the assumptions of the trace, and the reason.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        mode: bool | None,
        programs: dict[Any, list[Any]],
        make: Callable[..., JittedProgram],
    ) -> None:
        self._fn, self._mode = fn, mode
        self._programs = programs
        self._make = make
        self._signatures: dict[Any, Signature] = {}

    @property
    def observed(self) -> list[Any]:
        """The signatures of calls that have run eagerly."""
        return list(self._signatures)

    def made(self, key: Any, leaves: list[Any], spec: Any, reason: str) -> JittedProgram:
        """Returns a new program for a call that no program serves, specialized for the last
        observed values if it needs any.

        Raises:
            NeedsValue: it needs a value that was not observed.
        """
        known = self._signatures.get(key)
        latest = known.observations[0] if known is not None and known.observations else None
        return self._traced(key, leaves, spec, latest, reason)

    def _traced(
        self, key: object, leaves: list[Any], spec: object, seen: Observation | None, reason: str
    ) -> JittedProgram:
        if self._mode is False:
            return self._make(key, leaves, spec, lambda: None, reason)
        made: list[AssumedValues] = []

        def assumptions() -> AssumedValues:
            made.append(AssumedValues(self._mode is True, seen))
            return made[-1]

        try:
            program = self._make(key, leaves, spec, assumptions, reason)
        except Exception as error:
            if is_of_handler(error):
                raise
            if made and made[-1].unmet is not None:
                raise made[-1].unmet from None
            if not made or not made[-1].has_answered:
                raise
            # Wrong assumptions may be the cause; an eager call will show.
            if not isinstance(error, CalqueError):
                raise NeedsValue(error) from None
            if is_library(raising_file(error)):
                raise NeverServed(str(error)) from None
            raise
        if program.assumed is not None:
            self._signatures[key].unmet = 0
            logger.info("specialized to %s", "; ".join(program.assumed.lines()))
        return program

    def call(
        self, key: Any, leaves: list[Any], spec: Any, signal: UnservableCall, given: Any
    ) -> Any:
        """Handle a call that a program or a trace could not serve."""
        known = self._signatures.setdefault(key, Signature())
        tried: set[int] = set()
        if isinstance(signal, NeverServed):
            return self._give_up(key, str(signal))(leaves, given)
        while isinstance(signal, WrongAssumption):
            try:
                program = self._other(key, leaves, spec, known, signal, tried, given)
                if program is None:
                    break
                return program(leaves, given)
            except UnservableCall as another:
                signal = another.with_traceback(None)
        return self._watched(key, given, known, signal)

    def _other(
        self,
        key: object,
        leaves: list[Any],
        spec: object,
        known: Signature,
        missed: WrongAssumption,
        tried: set[int],
        given: object,
    ) -> JittedProgram | None:
        """Returns another program that may serve a call; None if there is none."""
        programs = self._programs[key]
        for program in programs:
            possible = program.assumed is not None and program.assumed.allows(missed)
            if possible and id(program) not in tried and program.failing(leaves, given) is None:
                tried.add(id(program))
                programs.remove(program)
                programs.insert(0, program)
                return program
        if known.traces >= MOST_TRACES or 0 in tried:
            return None
        for observation in known.observations:
            seen = merged(observation, missed)
            if seen is not None:
                tried.add(0)
                known.traces += 1
                reason = f"another value of {missed.asked}"
                return self._traced(key, leaves, spec, seen, reason)
        return None

    def _watched(self, key: object, given: Any, known: Signature, signal: UnservableCall) -> Any:
        logger.info("a call runs eagerly, to observe values: %s", signal)
        observer = ReadObserver()
        args, kwargs = given
        with observer.watching():
            result = self._fn(*args, **kwargs)
        self._learn(key, known, signal, observer.seen)
        return result

    def _learn(
        self, key: object, known: Signature, signal: UnservableCall, seen: Observation | None
    ) -> None:
        """Record the values of an eager call; decide whether programs are worthwhile."""
        asked = signal.asked if isinstance(signal, WrongAssumption) else signal
        if seen is None:
            self._give_up(key, f"it reads too many values: {asked}")
            return
        if isinstance(signal, WrongAssumption):
            known.missed(self._programs[key])
            seen = merged(seen, signal, same_call=True) or seen
        elif known.observations:
            known.unmet += 1
        known.remember(seen)
        if known.debt >= _MAX_DEBT:
            self._give_up(key, f"most calls have another value: {asked}")
        elif known.unmet >= _MOST_UNMET:
            self._give_up(key, f"it reads other values while it is traced: {asked}")

    def _give_up(self, key: object, why: str) -> Eager:
        self._signatures.pop(key, None)
        programs = self._programs.setdefault(key, [])
        programs[:] = [program for program in programs if program.assumed is None]
        eager = Eager(self._fn, why)
        programs.append(eager)
        name = getattr(self._fn, "__qualname__", None)
        name = name if isinstance(name, str) else type(self._fn).__name__
        line = user_origin()
        warnings.warn_explicit(
            f"{name} runs eagerly from now on for arguments like these: {why}\nDo that step "
            "outside the jitted function, or make the values repeat (pad to one size). "
            "calque.jit(..., specialize=False) raises an error there instead.",
            EagerWarning,
            line.file if line else "<unknown>",
            line.line if line else 0,
        )
        return eager
