"""The truth values that conditions on tensors have in one run of a program.

A program with such conditions runs once for each path. A run repeats the given answers, then
answers True; later runs take the branches for False.
"""

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch.fx.node import Node

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.core.origins import NodeOrigin, origin_here
from calque.tracing.graph.purity import has_effect

_limit = contextvars.ContextVar("limit", default=64)


@contextmanager
def max_paths(limit: int) -> Iterator[None]:
    """A context that sets how many paths through a program `calque.trace` follows; 64 by default.

    >>> import calque
    >>> with calque.tracing.max_paths(1):
    ...     graph = calque.trace(lambda x: x + 1)
    """
    token = _limit.set(limit)
    try:
        yield
    finally:
        _limit.reset(token)


class Decision(NamedTuple):
    """A condition on a tensor at which the program branches.

    Attributes:
        condition: the node of the condition.
        position: the number of nodes in the graph at that point.
        answer: the branch that this run took.
        origin: the line of the condition.
        asserts: whether it is the condition of an `assert` statement.
    """

    condition: Node
    position: int
    answer: bool
    origin: NodeOrigin | None
    asserts: bool


class ProgramPath:
    """One path through a program.

    Args:
        answers: the answers of the first decisions.
    """

    def __init__(self, answers: tuple[bool, ...] = ()) -> None:
        self._answers = answers
        self.decisions: list[Decision] = []

    def decide(self, tracer: Any, condition: Node, asserts: bool) -> bool:
        """Returns the answer for a condition; repeats an earlier answer until something is written.

        Args:
            asserts: whether it is the condition of an `assert` statement.

        Raises:
            TraceError: there are more decisions than the limit of paths.
        """
        known = self._known(condition)
        if known is not None:
            return known
        number = len(self.decisions)
        answer = self._answers[number] if number < len(self._answers) else True
        origin = origin_here(tracer.scope.module_path, 0)
        position = len(condition.graph.nodes)
        self.decisions.append(Decision(condition, position, answer, origin, asserts))
        if number >= _limit.get():
            raise too_many(self.decisions)
        return answer

    def _known(self, condition: Node) -> bool | None:
        for decision in self.decisions:
            if decision.condition is condition:
                since = list(condition.graph.nodes)[decision.position :]
                return None if any(map(has_effect_on_values, since)) else decision.answer
        return None


def has_effect_on_values(node: Node) -> bool:
    """Like `has_effect`, but True if this is not known before the graph is complete."""
    return node.op == "call_module" or has_effect(node)


class Budget:
    """Counts the runs of one program."""

    def __init__(self) -> None:
        self._spent = 0

    def spend(self, decisions: list[Decision]) -> None:
        """Count one more run, for the last decision.

        Raises:
            TraceError: there were too many runs.
        """
        self._spent += 1
        if self._spent >= _limit.get():
            raise too_many(decisions)


def too_many(decisions: list[Decision]) -> SymbolicTraceError:
    """The error for a program with more paths than the limit."""
    places = list(dict.fromkeys(str(d.origin) for d in decisions if d.origin is not None))
    shown = places if len(places) <= 4 else [*places[:2], f"... {len(places) - 4} more",
                                             *places[-2:]]  # fmt: skip
    lines = "".join(f"\n    {place}" for place in shown)
    return SymbolicTraceError(
        f"conditions on tensors give the program more than {_limit.get()} paths, at{lines}\nUse "
        "torch.where(condition, a, b) in some of these places, or raise the limit: "
        "`calque.trace(..., max_paths=256)`. Write a loop that ends by a condition on a tensor "
        "as torch.while_loop."
    )
