"""Memory shared between the results and operands of a choice.

When compiled, the operator for a choice returns copies. So a write after a choice belongs in both
blocks if its target is a result that shares memory with other tensors, or one of those tensors, and
the others are used afterwards.
"""

from collections.abc import Container, Iterable, Iterator

from calque.tracing.graph.effects import is_of_torch, may_share_memory, writes
from calque.tracing.graph.ir import Choice, Join, Result, Step, StepValue, values_in

Memory = set[StepValue | None]
"""The values that created some memory; None for memory from outside of the program."""
MemoryByValue = dict[StepValue | None, list[Memory]]
"""For each result of a choice, the memory that it may refer to in either block."""


def last_lost_write(join: Join, resolve: object) -> int | None:
    """Returns the index of the last step after a choice whose write would not reach an alias; None
    if there is none.

    Args:
        join: the steps after the choice, and the results that they use.
        resolve: returns the module that a `call_module` names.
    """
    given: MemoryByValue = {}
    for pair, result in join.pairs.items():
        given[result] = [memory_of([side]) for side in pair]
    used: Memory = set()
    for index, step in reversed(list(enumerate(join.steps))):
        if given and writes(step, resolve):
            for written in memory_of(_written(step), given):
                if _is_shared(written, used, given):
                    return index
        used |= memory_of(_used(step), given)
    return None


def _is_shared(written: StepValue | None, used: Memory, given: MemoryByValue) -> bool:
    """Returns True if, in either branch, other used values share memory with the written one."""
    for side in (0, 1):
        memory = given[written][side] if written in given else {written}
        if written in given and None in memory:
            return True  # the caller has it too
        for other in used - {written}:
            if other in given and memory & given[other][side]:
                return True
            if written in given and other in memory:
                return True
    return False


def memory_of(values: Iterable[StepValue], known: Container[StepValue] = ()) -> Memory:
    """Returns the values that created the memory of some values, back to the `known` ones."""
    found: Memory = set()
    left = list(values)
    while left:
        value = left.pop()
        if value in found:
            continue
        found.add(value)
        if value in known:
            continue
        if isinstance(value, Result):
            left += value.sides
        elif isinstance(value, Step) and may_share_memory(value):
            left += values_in((value.args, value.kwargs))
            if value.op in ("placeholder", "get_attr", "call_module") or not is_of_torch(value):
                found.add(None)
    return found


def _written(step: Step | Choice) -> Iterator[StepValue]:
    if isinstance(step, Choice):
        for inner in (*step.true.steps, *step.false.steps):
            yield from _written(inner)
    elif step.op != "call_module" and is_of_torch(step):
        yield from values_in((step.args[:1], step.kwargs.get("out")))
    else:
        yield from _used(step)


def _used(step: Step | Choice) -> Iterator[StepValue]:
    if isinstance(step, Step):
        yield from values_in((step.args, step.kwargs))
        return
    yield step.condition
    for block in (step.true, step.false):
        yield from block.results
        for inner in block.steps:
            yield from _used(inner)
