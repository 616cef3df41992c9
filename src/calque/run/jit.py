"""`calque.jit`: a PyTorch function as one XLA program."""

import copy
import functools
import logging
import threading
import time
import types
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, overload

import torch

from calque.device.cell import active
from calque.device.reading import Unforeseen
from calque.diagnostics import tidy
from calque.run import signature
from calque.run.assumptions import Assumptions
from calque.run.explain import Explanation, explain
from calque.run.guards import ambient
from calque.run.patience import announced
from calque.run.program import Program
from calque.run.record import record
from calque.run.specializing import Specializing

P = ParamSpec("P")
R = TypeVar("R")
Assuming = Callable[[], Assumptions | None]
logger = logging.getLogger("calque.jit")

_MANY_TRACES = 16
_MANY_PROGRAMS = 8
"""How many programs of one signature are kept: each holds on to the state that it was made for."""


class Jitted(Generic[P, R]):
    """A function, method or module that runs as one XLA program; made by `jit`.

    Attributes:
        programs: the compiled programs, by signature.
        history: why each trace was made.
    """

    def __init__(
        self, fn: Callable[P, R], checks: bool = False, specialize: bool | None = None
    ) -> None:
        self._fn = fn
        self._checks = checks
        self._specialize = specialize
        self.programs: dict[Any, list[Program]] = {}
        self.history: list[str] = []
        self.compilations = 0
        self._executables: dict[int, Any] = {}
        self._specializing = Specializing(fn, specialize, self.programs, self._make)
        self._lock = threading.RLock()
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if active.inlining or torch._C._functorch.maybe_current_level() is not None:
            return self._fn(*args, **kwargs)
        try:
            return self._call(args, kwargs)
        except Exception as error:
            raise tidy(error)  # noqa: B904 (the same exception, seen from the user's side)

    def _call(self, args: Any, kwargs: Any) -> Any:
        leaves, spec = signature.flatten_call(args, kwargs)
        key = self._key(leaves, spec)
        with self._lock:
            try:
                program = self._find(key, leaves) or self._missing(key, leaves, spec)
                return program(leaves)
            except Unforeseen as unforeseen:
                signal = unforeseen.with_traceback(None)
            return self._specializing.call(key, leaves, spec, signal)

    def _key(self, leaves: list[Any], spec: Any) -> Any:
        keys = [signature.key_of(leaf) for leaf in leaves]
        return (spec, ambient(), signature.sharing(leaves), *keys)  # see signature.difference

    def _find(self, key: Any, leaves: list[Any]) -> Program | None:
        for program in self.programs.get(key, ()):
            if program.failing(leaves) is None:
                return program
        return None

    def _missing(self, key: Any, leaves: list[Any], spec: Any) -> Program:
        reason = self._why(key, leaves)
        self._last = key
        return self._specializing.made(key, leaves, spec, reason)

    def _make(
        self, key: Any, leaves: list[Any], spec: Any, assumptions: Assuming, reason: str
    ) -> Program:
        program, lowered = self._trace(leaves, spec, assumptions)
        program.compile_with(self._compiled, lowered)
        self.history.append(reason)
        known = self.programs.setdefault(key, [])
        if not program.single_use:
            known.insert(0, program)
            del known[_MANY_PROGRAMS:]
        if len(self.history) == _MANY_TRACES:
            logger.warning("%s was traced %d times: %s", self, _MANY_TRACES, reason)
        return program

    def _trace(
        self, leaves: list[Any], spec: Any, assumptions: Assuming = lambda: None
    ) -> tuple[Program, Any]:
        started = time.perf_counter()
        program = Program(record(self._fn, leaves, spec, self._checks, assumptions))
        lowered = program.lower()
        logger.info("%s: traced and lowered in %.2f s", self, time.perf_counter() - started)
        return program, lowered

    def _compiled(self, lowered: Any) -> Any:
        """The executable of a lowered program; the same program is compiled once."""
        text = hash(lowered.as_text())
        known = self._executables.get(text)
        if known is None:
            with announced(f"compiling {self}"):
                known = self._executables[text] = lowered.compile()
            self.compilations += 1
        return known

    def _why(self, key: Any, leaves: list[Any]) -> str:
        if not self.history:
            return "first call"
        programs = self.programs.get(key)
        if programs:
            return programs[0].failing(leaves).why()
        if key in self.programs:
            return "the function left tensors behind in its last call"
        return signature.difference(self._last, key)

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Trace for these arguments without running: a `jax.stages.Lowered`.

        Optimizers that the function steps are left with their state initialised.
        """
        leaves, spec = signature.flatten_call(args, kwargs)
        with self._lock:
            return self._trace(leaves, spec)[1]

    def explain(self) -> Explanation:
        """What was lifted, what is guarded, and how often and why the function was traced."""
        return explain(self)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_fn":
            raise AttributeError(name)
        return getattr(self._fn, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Jitted[P, R]":
        return Jitted(copy.deepcopy(self._fn, memo), self._checks, self._specialize)

    def __reduce__(self) -> Any:
        return Jitted, (self._fn, self._checks, self._specialize)

    def __str__(self) -> str:
        return getattr(self._fn, "__qualname__", type(self._fn).__name__)

    def __repr__(self) -> str:
        return f"<calque.jit of {self}>"


@overload
def jit(
    fn: Callable[P, R], *, checks: bool = False, specialize: bool | None = None
) -> Jitted[P, R]: ...


@overload
def jit(
    *, checks: bool = False, specialize: bool | None = None
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...


def jit(fn: Any = None, *, checks: bool = False, specialize: bool | None = None) -> Any:
    """As `jax.jit`, but for PyTorch code with state: a function becomes one XLA program.

    The function is run once with traced tensors. Tensors it reads that are not arguments
    (parameters, buffers, optimizer state) become inputs; those it writes become outputs, updated
    in place, their memory donated if nothing else holds it. A whole training step, with
    `loss.backward()` and `optimizer.step()`, is one program.

    Args:
        fn: a function, method or module; its arguments and results are pytrees of tensors (any
            shape and dtype) and Python values. Python values are compiled in: another value is
            another program. Without it, `jit` gives a decorator.
        checks: whether the program checks values as PyTorch does eagerly: indices and class labels
            in bounds, integer divisors that are not zero, matrices that can be factored. The first
            check that fails raises PyTorch's exception, with the line it stands for, and nothing
            has changed then. Such a program is waited for at every call, and its memory is not
            donated. Without the checks a read out of bounds gives NaN (the smallest number, of
            integers; the largest, of unsigned ones), a write out of bounds is left out, and a
            matrix that cannot be factored gives NaN.
        specialize: what happens where a tensor's value is needed while the function is traced
            (`if`, `.item()`, `x[mask]`). With False a TraceError is raised. With True the call runs
            eagerly, which shows the value; the next one is compiled for it, and every call of that
            program compares: with other values the call runs eagerly, or by a program made for
            those. By default that is so in the code of installed packages, and an error in the
            user's own.

    Raises:
        TraceError: the function needs a tensor's value while it is traced, or does something else
            one program cannot repeat. Nothing has changed then.

    Warns:
        EagerWarning: the values are others at most calls, so that calls with such arguments run
            eagerly from now on.

    >>> import torch, calque
    >>> w = torch.ones(3, device="jax")
    >>> @calque.jit
    ... def step(x):
    ...     w.add_(x)
    ...     return w.sum()
    >>> step(torch.ones(3, device="jax")).item(), w.tolist()
    (6.0, [2.0, 2.0, 2.0])
    """
    if fn is None:
        return functools.partial(Jitted, checks=checks, specialize=specialize)
    return Jitted(fn, checks, specialize)
