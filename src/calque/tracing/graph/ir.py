"""The intermediate form of programs with branches, before they become a graph.

A `Step` is a node of a run; a `Choice` has two blocks, one of which runs. Where both branches do
the same, `Join` merges two steps into one, and records which values each branch passes to it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.node import Node

from calque.tracing.core.origins import NodeOrigin


class StepValue:
    """A step's result for later steps.

    Attributes:
        val: the abstract value; None if it is not known.
        origin: the line that made it.
    """

    val: Any
    origin: NodeOrigin | None


class Step(StepValue):
    """One operation.

    Attributes:
        op, target, args, kwargs: those of a node, with values instead of nodes.
        node: the node that a run recorded; None for a merged step.
        optional: whether the step is left out if nothing uses its result.
    """

    def __init__(
        self, op: str, target: Any, args: Any, kwargs: Any, node: Node | None = None
    ) -> None:
        self.op: str = op
        self.target: Any = target
        self.args: Any = args
        self.kwargs: Any = kwargs
        self.node: Node | None = node
        meta = node.meta if node is not None else {}
        self.val: Any = meta.get("val")
        self.origin: NodeOrigin | None = meta.get("origin")
        self.optional = False


class Result(StepValue):
    """A value from the block of a choice that has run.

    Attributes:
        sides: the value in each block.
    """

    def __init__(self, true: StepValue, false: StepValue) -> None:
        self.sides: tuple[StepValue, StepValue] = true, false
        self.val: Any = true.val if false.val is not None else None
        self.origin: NodeOrigin | None = true.origin


@dataclass(eq=False)
class StepBlock:
    """Steps, and their results for later steps."""

    steps: list["Step | Choice"]
    results: list[StepValue] = field(default_factory=list)


@dataclass(eq=False)
class Choice:
    """Two blocks, and the condition that selects one.

    Attributes:
        origin: the line that decides.
        results: for each pair of results of the blocks, the value that later steps use.
    """

    condition: StepValue
    origin: NodeOrigin | None
    true: StepBlock
    false: StepBlock
    results: list[Result]


class Mismatch(Exception):
    """Two steps or arguments differ."""


def unified(a: Any, b: Any, values: Callable[[StepValue, StepValue], StepValue]) -> Any:
    """Merges two arguments.

    Args:
        values: merges two values.

    Raises:
        Mismatch: they differ by more than their values.
    """
    if isinstance(a, StepValue) and isinstance(b, StepValue):
        return values(a, b)
    if type(a) is not type(b):
        raise Mismatch
    if isinstance(a, (tuple, list)):
        if len(a) != len(b):
            raise Mismatch
        parts = [unified(x, y, values) for x, y in zip(a, b)]
        return type(a)(*parts) if hasattr(a, "_fields") else type(a)(parts)
    if isinstance(a, dict):
        if list(a) != list(b):
            raise Mismatch
        return type(a)((key, unified(a[key], b[key], values)) for key in a)
    if isinstance(a, slice):
        ends = [(a.start, b.start), (a.stop, b.stop), (a.step, b.step)]
        return slice(*(unified(x, y, values) for x, y in ends))
    if not same(a, b):
        raise Mismatch
    return a


def same(a: Any, b: Any) -> bool:
    """Returns True if two constants have the same type and are equal; nan equals itself."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return equal_constants(a, b)
    if isinstance(a, (float, complex)):
        return repr(a) == repr(b)
    return bool(a == b)


def equal_constants(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns True if two constant tensors from different runs have the same contents."""
    if isinstance(a, torch.nn.Parameter) or a.requires_grad or b.requires_grad:
        return False
    alike = (a.shape, a.dtype, a.device, a.layout) == (b.shape, b.dtype, b.device, b.layout)
    if not alike or a.device.type == "meta":
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


def values_in(argument: object) -> Iterator[StepValue]:
    """Yields the values inside an argument."""
    if isinstance(argument, StepValue):
        yield argument
    elif isinstance(argument, (tuple, list)):
        for part in argument:
            yield from values_in(part)
    elif isinstance(argument, dict):
        yield from values_in(tuple(argument.values()))
    elif isinstance(argument, slice):
        yield from values_in((argument.start, argument.stop, argument.step))


class Join:
    """Merges the common end of two blocks, step by step.

    Attributes:
        steps: the merged steps so far.
        pairs: for each pair of values from the two blocks, the value that the merged steps use.
    """

    def __init__(self) -> None:
        self.steps: list[Step | Choice] = []
        self.pairs: dict[tuple[StepValue, StepValue], Result] = {}
        self._made: dict[StepValue, tuple[StepValue, StepValue]] = {}
        self._false: set[StepValue] = set()

    def add(self, true: Step | Choice, false: Step | Choice) -> None:
        """Merge the next steps of both blocks.

        Raises:
            Mismatch: they do different things.
        """
        self.steps.append(self._joined(true, false))

    def _joined(self, true: Step | Choice, false: Step | Choice) -> Step | Choice:
        if isinstance(true, Step) and isinstance(false, Step):
            return self._step(true, false)
        if isinstance(true, Choice) and isinstance(false, Choice):
            return self._choice(true, false)
        raise Mismatch

    def _note(self, true: StepValue, false: StepValue, made: StepValue) -> None:
        self._made[true] = (false, made)
        self._false.add(false)

    def _step(self, true: Step, false: Step) -> Step:
        if true.op != false.op or not same(true.target, false.target):
            raise Mismatch
        args = unified(true.args, false.args, self._value)
        kwargs = unified(true.kwargs, false.kwargs, self._value)
        step = Step(true.op, true.target, args, kwargs, true.node)
        step.optional = true.optional
        self._note(true, false, step)
        return step

    def _choice(self, true: Choice, false: Choice) -> Choice:
        if true.origin != false.origin or len(true.results) != len(false.results):
            raise Mismatch
        condition = self._value(true.condition, false.condition)
        blocks = [self._block(true.true, false.true), self._block(true.false, false.false)]
        results = [Result(*pair) for pair in zip(blocks[0].results, blocks[1].results)]
        for old, other, made in zip(true.results, false.results, results):
            self._note(old, other, made)
        return Choice(condition, true.origin, blocks[0], blocks[1], results)

    def _block(self, true: StepBlock, false: StepBlock) -> StepBlock:
        if len(true.steps) != len(false.steps):
            raise Mismatch
        steps = [self._joined(a, b) for a, b in zip(true.steps, false.steps)]
        return StepBlock(steps, [self._value(a, b) for a, b in zip(true.results, false.results)])

    def _value(self, true: StepValue, false: StepValue) -> StepValue:
        made = self._made.get(true)
        if made is not None and made[0] is false:
            return made[1]
        if made is not None or false in self._false:
            raise Mismatch
        if true is false:
            return true
        return self.pairs.setdefault((true, false), Result(true, false))
