"""A function that runs as one XLA program; chooses the program for a call, or traces one."""

import copy
import functools
import logging
import threading
import time
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, ParamSpec, TypeVar

from torch.compiler import is_dynamo_compiling
from torch.profiler import record_function

from calque.device.backend.printing import described_otherwise, refuse_read
from calque.device.memory.cell import active
from calque.device.memory.host_reads import UnservableCall
from calque.device.runtime import threads
from calque.errors import tidy
from calque.errors.handlers import settles
from calque.jitting.argument_numbers import ArgumentNumbers
from calque.jitting.assumed_values import AssumedValues
from calque.jitting.copied_counts import CopiedCounts, Counts
from calque.jitting.executables import Executables
from calque.jitting.explain import Explanation, explain
from calque.jitting.fast_call import Call, FastCall
from calque.jitting.generated.source import MISS
from calque.jitting.hints import add_hint, refuse_arguments
from calque.jitting.inlined import is_inlined
from calque.jitting.learned_numbers import LearnedNumbers
from calque.jitting.modes import ambient
from calque.jitting.objects import Objects
from calque.jitting.optimizer_rollback import Prepared
from calque.jitting.program import JittedProgram
from calque.jitting.recording import TraceRecording
from calque.jitting.replaced_state import Exchanged, Place
from calque.jitting.retraces import Retraces
from calque.jitting.settings import Settings, check_function
from calque.jitting.specialize import Specializing
from calque.jitting.tracing import Unshaped, record
from calque.jitting.variable_numbers import Variable, repeated
from calque.jitting.verification import Repeating, takes_keywords
from calque.program import signature, trees
from calque.program.call_serialization import Stale, tracing, wait_for_traces
from calque.program.gradients.derivatives import DerivativeStep
from calque.program.lazy_arguments import Restructure
from calque.program.number_errors import GivenNumberNeeded
from calque.program.trace_collection import collecting_less
from calque.state import StateGuard
from calque.upstream.torch_internals import profiler_enabled

P = ParamSpec("P")
R = TypeVar("R")
Assuming = Callable[[], AssumedValues | None]
logger: logging.Logger = logging.getLogger("calque.jit")

_DEFAULTS = Settings()
_alone, _present = threads.alone, threads.present
_TENSORS = "the function kept tensors in its last call"
_MANY_PROGRAMS = 8
"""The maximum number of programs of one signature, because each keeps its state alive."""


class Jitted(Generic[P, R]):
    """A function, method or module that runs as one XLA program; made by `jit`.

    Attributes:
        programs: the compiled programs, by signature.
        history: the reason for each trace, in order.
    """

    def __init__(
        self,
        fn: Callable[P, R],
        settings: Settings = _DEFAULTS,
    ) -> None:
        check_function(fn)
        self._fn = fn
        self._settings = settings
        self.programs: dict[Any, list[JittedProgram]] = {}
        self.history: list[str] = []
        self._executables = Executables(str(self), _MANY_PROGRAMS)
        self._calls: dict[Any, int] = {}  # by signature, at the time of the last drop
        self._specializing = Specializing(fn, settings.specialize, self.programs, self._make)
        self._ordered = takes_keywords(fn)
        self._repeating = Repeating(fn, settings.verify)
        self._retraces = Retraces(fn)
        self._lock = threading.RLock()
        self._given: Any = None
        self._last: Any = None
        self._objects = Objects()
        self._prepared = Prepared()
        self._exchanged = Exchanged()
        self._copied = CopiedCounts()
        self._numbers = LearnedNumbers()
        self._arguments = ArgumentNumbers(fn)
        self._fast: FastCall | None = None  # for calls like the previous one
        self._alone: Call | None = None  # the same, for a thread that is alone
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = self.run(args, kwargs)
            if result is not MISS:
                return result
        except Exception as error:
            add_hint(error)
            tidy(error)
            raise  # which adds no frame, unlike `raise error`
        return self._fn(*args, **kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the result of a call; `MISS` if the call is inlined (see `is_inlined`)."""
        if not is_dynamo_compiling():
            alone = self._alone
            # Reading thread-local data registers a new thread.
            if alone is not None and not (kwargs or active.inlining):
                _alone.calls += 1
                try:
                    result = alone(args) if len(_present) < 2 else MISS
                finally:
                    _alone.calls -= 1
                if result is not MISS:
                    return result
        return MISS if is_inlined() else self._in_general(args, kwargs)

    def _in_general(self, args: object, kwargs: object) -> Any:
        """Serve a call that differs from the previous one, or is not alone on the device."""
        if not profiler_enabled():
            return self._shared(args, kwargs)
        with record_function(f"calque.jit: {self}"):
            return self._shared(args, kwargs)

    def _keep_fast(self, fast: FastCall | None) -> None:
        self._fast = fast
        self._alone = None if fast is None else fast.alone

    def _shared(self, args: Any, kwargs: Any) -> Any:
        """Handle a call while other threads may use the device."""
        fast = self._fast
        if fast is not None and not kwargs:
            try:
                with self._lock:
                    result = fast.shared(args)
                if result is not MISS:
                    return result
            except Stale:
                pass
        return self._call(args, kwargs)

    def _call(self, args: Any, kwargs: Any) -> Any:
        """Handle a call in the general case."""
        leaves, spec = self._flatten(args, kwargs)
        given = args, kwargs
        while True:
            try:
                key = self._key(leaves, spec)
                with self._lock, self._prepared:
                    try:
                        self._given = given
                        self._arguments.fill(spec, leaves)
                        program = self._find(key, leaves) or self._missing(key, leaves, spec)
                        return program(leaves, given)
                    except UnservableCall as unforeseen:
                        signal = unforeseen.with_traceback(None)
                    finally:
                        self._given = None
                    return self._specializing.call(key, leaves, spec, signal, given)
            except Stale:  # another thread is tracing, or has changed the state
                wait_for_traces()
            except Unshaped:
                run: Callable[..., Any] = self._fn
                return run(*args, **kwargs)
            except GivenNumberNeeded:
                pass  # the number is part of the key from now on
            except Restructure as signal:
                self._restructure(signal)
                leaves, spec = self._flatten(args, kwargs)

    def _flatten(self, args: object, kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
        if self._objects.opened:
            return self._objects.flatten(args, kwargs, self._ordered)
        return trees.flatten_call(args, kwargs, self._ordered)

    def _restructure(self, signal: Restructure) -> None:
        """Change how arguments are flattened; programs for single objects release these."""
        with self._lock:
            self._objects.follow(signal)
            for key in [k for k in self.programs if signature.holds_any(k, signal.opened)]:
                del self.programs[key]

    def _key(self, leaves: list[Any], spec: object) -> Any:
        try:
            keys = [signature.key_of(leaf) for leaf in leaves]
        except RuntimeError:  # a nested tensor has no shape
            refuse_arguments(leaves)
            raise
        keys = self._arguments.keyed(spec, keys)
        return (spec, ambient(), signature.arrangement(leaves), *keys)  # see signature.difference

    def _find(self, key: object, leaves: list[Any]) -> JittedProgram | None:
        for program in self.programs.get(key, ()):
            if program.failing(leaves, self._given) is None:
                if program.unverified and self._repeating.is_due(program, leaves):
                    program = self._verified(program, key, leaves)
                self._repeating.served()
                if not program.unverified and key not in self._repeating.differing:
                    args, kwargs = self._given
                    self._keep_fast(program.fast_call(args, kwargs, key))
                return program
        return None

    def _verified(self, program: JittedProgram, key: Any, leaves: list[Any]) -> JittedProgram:
        """Returns the program if a second trace gives the same, otherwise the second program."""
        with described_otherwise() as texts:
            same = program.recording
            found = leaves, key[0], lambda: None, same.exchanged, same.copied, same.variables
            again, lowered = self._trace(*found)
        if texts and self._repeating.differs(program, again, lowered):
            again, lowered = self._trace(*found)
            if not self._repeating.differs(program, again, lowered):
                refuse_read(texts)
        if self._repeating.compare(key, program, again, lowered):
            return program
        again.compile_with(self._executables.of, lowered)
        self.programs[key].clear()
        self.history.append("the function does something else in each call")
        return again

    def _missing(self, key: object, leaves: list[Any], spec: object) -> JittedProgram:
        refuse_arguments(leaves)
        self._objects.learn(self._last, key)
        made = [one for one, programs in self.programs.items() if programs]
        self._arguments.learn([*self._specializing.observed, *made], key)
        reason = self._why(key, leaves)
        self._retraces.compare(self._last, key)
        self._last = key
        return self._specializing.made(key, leaves, spec, reason)

    def _make(
        self, key: Any, leaves: list[Any], spec: Any, assumptions: Assuming, reason: str
    ) -> JittedProgram:
        self._keep_fast(None)
        known = self._exchanged.places, self._copied.places, self._numbers.variables
        program, lowered = self._trace(leaves, spec, assumptions, *known, foresees=True)
        program.compile_with(self._executables.of, lowered)
        self._keep(key, program, reason)
        self._repeating.made(key, program, lowered, leaves, reason)
        if len(self.programs) > self._settings.max_programs:
            self._forget(key)
        if not self._repeating.warns:
            self._retraces.traced(self.history, program.guarded, self.compilations)
        return program

    @settles
    def _keep(self, key: Any, program: JittedProgram, reason: str) -> None:
        """Record a trace, and keep its program if it can serve other calls."""
        self.history.append(reason)
        known = self.programs.setdefault(key, [])
        if program.single_use:
            self._left_behind = [*program.recording.unrepeatable, _TENSORS][0]
        elif key not in self._repeating.differing:
            known.insert(0, program)
            del known[_MANY_PROGRAMS:]
            if self._prepared:
                self._prepared.users.append(functools.partial(self._drop, known, program))

    def _drop(self, known: list[JittedProgram], program: JittedProgram) -> None:
        if program in known:
            known.remove(program)
            self._left_behind = "its first call ended in an error"

    def _trace(
        self,
        leaves: list[Any],
        spec: object,
        assumptions: Assuming = lambda: None,
        exchanged: tuple[Place, ...] = (),
        copied: tuple[Place, ...] = (),
        numbers: tuple[Variable, ...] = (),
        foresees: bool = False,
    ) -> tuple[JittedProgram, Any]:
        started, checks = time.perf_counter(), self._settings.checks

        def again(
            leaves: list[Any], path: tuple[DerivativeStep, ...], before: TraceRecording
        ) -> TraceRecording:
            found = self._fn, leaves, spec, checks, assumptions, path, None, exchanged
            self._arguments.fill(spec, leaves)
            undone = Prepared()  # like all effects of the trace
            with tracing():
                again = functools.partial(record, *found, prepared=undone)
                return repeated(lambda numbers: again(numbers=numbers), before)

        def trace(numbers: tuple[Variable, ...]) -> JittedProgram:
            found = self._fn, leaves, spec, checks, assumptions, (), self._given, exchanged

            def recorded(given: tuple[Variable, ...], seen: list[Counts]) -> TraceRecording:
                def once(numbers: tuple[Variable, ...], counts: Counts) -> TraceRecording:
                    seen.append(counts)
                    known = {"counts": counts, "numbers": numbers + given}
                    return record(*found, prepared=self._prepared, **known)

                return self._copied.recorded(
                    lambda counts: self._numbers.recorded(once, numbers, counts), copied
                )

            with tracing():
                recording = self._arguments.recorded(recorded, spec, leaves)
                recording.exchanged = exchanged
            return JittedProgram(recording, again, self._settings.scan_layers)

        with collecting_less():
            program = trace(numbers)
            # Tensors created like it, and its gradients, have the new placement.
            if program.moved_state:
                program.recording.abandon()
                program = trace(numbers)
            if foresees and self._numbers.foresee(program.recording, leaves):
                program = trace(self._numbers.variables)
            lowered = program.lower()
        logger.info("%s: traced and lowered in %.2f s", self, time.perf_counter() - started)
        return program, lowered

    def _forget(self, newest: object) -> None:
        """Drop the oldest signature whose programs have not run since the last drop, or the oldest
        of all.
        """
        calls = {k: sum(p.calls for p in programs) for k, programs in self.programs.items()}
        others = [k for k in self.programs if k != newest]
        idle = [k for k in others if calls[k] == self._calls.get(k, 0)]
        del self.programs[(idle or others)[0]]
        self._calls = calls

    def _why(self, key: object, leaves: list[Any]) -> str:
        if not self.history:
            return "first call"
        programs = self.programs.get(key)
        if programs:
            guard = programs[0].failing(leaves, self._given)
            self._exchanged.learn(guard)
            for one in getattr(programs[0], "guards", ()):  # none if its calls run eagerly
                if one is guard or (type(one) is StateGuard and not one.holds()):
                    self._copied.learn(one)
                    self._numbers.learn(one)
            return "the state changed" if guard is None else guard.why()
        if key in self._repeating.differing:
            return "the function does something else in each call"
        if key in self.programs:
            return self._left_behind
        return signature.difference(self._last, key)

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Traces for these arguments without running; returns a `jax.stages.Lowered`.

        Optimizers that the function steps have their state initialized afterwards.
        """
        leaves, spec = trees.flatten_call(args, kwargs, self._ordered)
        while True:
            with suppress(GivenNumberNeeded), self._lock, self._prepared:
                program, lowered = self._trace(leaves, spec)
                program.recording.abandon()
                return lowered

    @property
    def compilations(self) -> int:
        """The number of programs that XLA compiled."""
        return self._executables.compilations

    def explain(self) -> Explanation:
        """Explains what was lifted and guarded, and how often and why the function was traced."""
        return explain(self)

    def __get__(self, instance: object, owner: object = None) -> Any:
        if instance is not None and is_dynamo_compiling():  # which knows no other methods
            return functools.partial(self._fn, instance)
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_fn":
            raise AttributeError(name)
        return getattr(self._fn, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Jitted[P, R]":
        return Jitted(copy.deepcopy(self._fn, memo), self._settings)

    def __reduce__(self) -> Any:
        return Jitted, (self._fn, self._settings)

    def __calque_state__(self) -> Any:
        """Returns the function, whose state `calque.state` searches."""
        return self._fn

    def __str__(self) -> str:
        name = getattr(self._fn, "__qualname__", None)
        return name if isinstance(name, str) else type(self._fn).__name__

    def __repr__(self) -> str:
        return f"<calque.jit of {self}>"
