"""Runs a program in a mode, and judges it by what it does on the CPU."""

import dataclasses
import functools
import re
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from calque import CalqueError
from tests.laws.state import case, settings
from tests.laws.state.case import Case, fresh
from tests.laws.state.describe import Node, describe, difference

RIGHT, REFUSED, WRONG = "right", "refused", "WRONG"

# In a traceback, the line is that of the call.
_OF_THE_CALL = re.compile("traced (with|where) .*called (with|where)")


@dataclasses.dataclass(frozen=True)
class Program:
    """A row of a table: the program, and what may be expected of it.

    `states` is the number of different states that its calls find; each costs a trace and a
    compilation, and the first a second trace. `each_call` says that by its nature it is traced at
    each call (what it does cannot be repeated otherwise), or that its state never returns.
    """

    name: str
    group: str
    body: Callable[[Case], Iterator[Any]]
    modes: tuple[str, ...]
    states: int = 1
    each_call: bool = False

    @property
    def traces(self) -> int | None:
        return None if self.each_call else self.states + 1

    @property
    def compilations(self) -> int | None:
        return None if self.each_call else self.states


_COUNTED = (" was traced 4 times", " computes with CPU tensors")  # traces have a limit here


@dataclasses.dataclass
class Outcome:
    """What a program did in a mode."""

    program: Program
    mode: str
    kind: str
    message: str = ""
    traces: int = 0
    compilations: int = 0
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()

    @property
    def excess(self) -> str | None:
        """More traces, compilations or warnings than the program is worth, if it was right."""
        program = self.program
        if self.kind != RIGHT or program.each_call:
            return None
        if self.traces > program.states + 1 or self.compilations > program.states:
            return (
                f"{self.traces} traces and {self.compilations} compilations, at most "
                f"{program.states + 1} and {program.states}"
            )
        told = [text for text in self.warnings if not any(part in text for part in _COUNTED)]
        return f"warned: {told[0]}" if told else None


@dataclasses.dataclass
class _Run:
    seen: list[Node]
    error: BaseException | None
    case: Case
    warnings: tuple[str, ...]


def _run(program: Program, mode: str) -> _Run:
    seen: list[Node] = []
    error = None
    with fresh() as stack, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = Case(mode, stack)
        steps = program.body(made)
        try:
            for value in steps:
                seen.append(describe(value))
        except Exception as raised:
            error = raised
        finally:
            steps.close()  # type: ignore[attr-defined]
    return _Run(seen, error, made, tuple(_of_calque(caught)))


def _of_calque(caught: list[warnings.WarningMessage]) -> Iterator[str]:
    for warning in caught:
        if warning.category.__module__.startswith("calque"):
            yield f"{warning.category.__name__}: {warning.message}"


@functools.cache
def reference(program: Program) -> tuple[Node, ...]:
    """What the program shows on the CPU; the same whenever it is run."""
    once, again = _run(program, "cpu"), _run(program, "cpu")
    for run in (once, again):
        if run.error is not None:
            raise run.error
    for i, (a, b) in enumerate(zip(once.seen, again.seen, strict=True)):
        if said := difference(a, b):
            raise AssertionError(f"{program.name} is not deterministic at {i}: {said}")
    return tuple(once.seen)


def run(program: Program, mode: str) -> Outcome:
    """Run in a mode, and compare with the CPU."""
    expected = reference(program)
    if mode == "compile":
        torch._dynamo.reset()
    start = time.perf_counter()
    made = _run(program, mode)
    outcome = Outcome(program, mode, RIGHT, seconds=time.perf_counter() - start)
    outcome.warnings = made.warnings
    for fn in made.case.wrapped:
        outcome.traces = max(outcome.traces, len(getattr(fn, "history", ())))
        outcome.compilations = max(outcome.compilations, getattr(fn, "compilations", 0))
    for i, (a, b) in enumerate(zip(made.seen, expected)):
        if said := difference(a, b):
            outcome.kind, outcome.message = WRONG, f"observation {i}: {said}"
            return outcome
    if made.error is not None:
        outcome.kind, outcome.message = _judge(program, made.error)
    elif len(made.seen) != len(expected):
        outcome.kind, outcome.message = WRONG, f"{len(made.seen)} observations"
    return outcome


def _judge(program: Program, error: BaseException) -> tuple[str, str]:
    said = f"{type(error).__name__}: {error}"
    if not isinstance(error, CalqueError):
        return WRONG, said
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    wrapped = max((i for i, name in enumerate(files) if name == case.__file__), default=len(files))
    own = (program.body.__code__.co_filename, settings.__file__)
    inside = any(name in own for name in files[wrapped:])
    texts = (said, *getattr(error, "__notes__", ()))
    named = any(name in text for name in (*own, program.name) for text in texts)
    if not (inside or named or _OF_THE_CALL.search(said)):
        return WRONG, "names no line of the program: " + said
    return REFUSED, said
