"""Joins the paths through a program into one list of steps with choices.

After a branch, both paths contain the whole rest of the program, because Python cannot be resumed
in the middle. The common end is placed once, after the choice; the rest becomes the blocks of the
choice.
"""

from dataclasses import dataclass
from typing import Any

import torch

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.graph.checks import raise_when
from calque.tracing.graph.effects import step_has_effect
from calque.tracing.graph.ir import Choice, Join, Mismatch, Step, StepBlock, StepValue, values_in
from calque.tracing.paths.decisions import Decision
from calque.tracing.paths.memory import last_lost_write

Steps = list[Step | Choice]


@dataclass
class Fork:
    """A point at which a program branches."""

    decision: Decision
    condition: StepValue
    true: "PathSegment"
    false: "PathSegment"


@dataclass
class PathSegment:
    """A segment of a path, from one decision to the next or to the end.

    Attributes:
        steps: its steps; the last is the output, unless there is a fork or an error.
        end: the fork at its end; None after the output; or a step whose result is the error raised.
    """

    steps: Steps
    end: Fork | Step | None


class Joiner:
    """Joins the paths through a program into one list of steps.

    Args:
        resolve: returns the module that a `call_module` names.
    """

    def __init__(self, resolve: Any) -> None:
        self._resolve = resolve

    def join(self, way: PathSegment) -> tuple[Steps, Step | None]:
        """Returns the steps, and the error that they raise at the end, if any.

        Raises:
            TraceError: two paths return values of different structures, shapes or dtypes.
        """
        fork = way.end
        if not isinstance(fork, Fork):
            return way.steps, fork
        true, true_error = self.join(fork.true)
        false, false_error = self.join(fork.false)
        if true_error is not None:
            return [*way.steps, *self._raising(fork, True, true, true_error), *false], false_error
        if false_error is not None:
            return [*way.steps, *self._raising(fork, False, false, false_error), *true], None
        return [*way.steps, *self._choose(fork, true, false)], None

    def _raising(self, fork: Fork, truth: bool, steps: Steps, error: Step) -> Steps:
        before: Steps = []
        if any(step_has_effect(step, self._resolve) for step in steps):
            blocks = (
                (StepBlock(steps), StepBlock([])) if truth else (StepBlock([]), StepBlock(steps))
            )
            before.append(Choice(fork.condition, fork.decision.origin, *blocks, []))
        check = Step("call_function", raise_when, (fork.condition, truth, error), {})
        check.origin = fork.decision.origin
        return [*before, error, check]

    def _choose(self, fork: Fork, true: Steps, false: Steps) -> Steps:
        shared = min(len(true), len(false))
        while True:
            join, shared = _longest(true, false, shared)
            if shared == 0:
                raise _disagreement(fork, true[-1], false[-1], None)
            bad = next((pair for pair in join.pairs if not _compatible(*pair)), None)
            if bad is not None:
                if _uses(join.steps[-1], join.pairs[bad]):
                    raise _disagreement(fork, true[-1], false[-1], bad)
                shared -= 1 + max(i for i, s in enumerate(join.steps) if _uses(s, join.pairs[bad]))
                continue
            write = last_lost_write(join, self._resolve)
            if write is None:
                break
            shared -= 1 + write
        results = list(join.pairs.values())
        blocks = [
            StepBlock(steps[: len(steps) - shared], [pair[side] for pair in join.pairs])
            for side, steps in enumerate((true, false))
        ]
        choice = Choice(fork.condition, fork.decision.origin, blocks[0], blocks[1], results)
        idle = not any(step_has_effect(s, self._resolve) for block in blocks for s in block.steps)
        if not results and idle:
            return join.steps
        return [choice, *join.steps]


def _longest(true: Steps, false: Steps, shared: int) -> tuple[Join, int]:
    """Returns the length of the longest common end, of at most `shared` steps."""
    while shared:
        join = Join()
        pairs = zip(true[-shared:], false[-shared:])
        for done, (a, b) in enumerate(pairs):
            try:
                join.add(a, b)
            except Mismatch:
                shared -= done + 1
                break
        else:
            return join, shared
    return Join(), 0


def _uses(step: Step | Choice, value: StepValue) -> bool:
    if isinstance(step, Step):
        return any(used is value for used in values_in((step.args, step.kwargs)))
    blocks = (step.true, step.false)
    return step.condition is value or any(
        any(used is value for used in block.results) or any(_uses(s, value) for s in block.steps)
        for block in blocks
    )


def _compatible(true: StepValue, false: StepValue) -> bool:
    a, b = true.val, false.val
    if a is None or b is None:
        return True
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
    return type(a) is type(b)


def _disagreement(
    fork: Fork, true: Any, false: Any, pair: tuple[StepValue, StepValue] | None
) -> SymbolicTraceError:
    """The error for two branches that return different types."""
    origin = fork.decision.origin
    sides = pair if pair is not None else _first_difference(true.args[0], false.args[0])
    lines = [f"    {word:5} {_described(side)}" for word, side in zip(("true:", "false:"), sides)]
    return SymbolicTraceError(
        f"{origin}: the returned value depends on a condition on a tensor, but the two branches "
        "differ in structure, shape or dtype.\n" + "\n".join(lines) + "\n"
        "Return the same kind of value from both branches: pad or cast one of them, or use a "
        "tensor (torch.zeros_like, torch.full) instead of a number or None."
    )


def _first_difference(a: Any, b: Any) -> tuple[Any, Any]:
    """Returns the first parts in which two returned structures differ."""
    if type(a) is type(b) and isinstance(a, (tuple, list)) and len(a) == len(b):
        for x, y in zip(a, b):
            if not (isinstance(x, StepValue) and isinstance(y, StepValue)) and x is not y:
                found = _first_difference(x, y)
                if type(x) is not type(y) or found != (x, y) or x != y:
                    return found
    if isinstance(a, dict) and isinstance(b, dict) and list(a) == list(b):
        return _first_difference(list(a.values()), list(b.values()))
    return a, b


def _described(value: object) -> str:
    if isinstance(value, StepValue):
        val = value.val
        kind = "a value"
        if isinstance(val, torch.Tensor):
            kind = f"{str(val.dtype).removeprefix('torch.')}{list(val.shape)}"
        if isinstance(value, Step) and value.op == "placeholder":
            return f"{kind}, the argument {value.target}"
        return kind + _place(value)
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}" + _place(next(values_in(value), None))
    if isinstance(value, dict):
        keys = ", ".join(map(repr, value))
        return f"a dict with the keys {keys}" + _place(next(values_in(value), None))
    return repr(value)


def _place(value: StepValue | None) -> str:
    if value is None or value.origin is None:
        return ""
    return f", from line {value.origin.line}: {value.origin.text}"
