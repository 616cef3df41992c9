"""Generates the lines that run a program as one step (see `program.stepping`), in simple cases.

Simple programs read and write whole cells, arguments and numbers of param groups, and their results
and gradients have separate memory. `Program` runs others.
"""

import sys
from collections import deque
from collections.abc import Sequence
from itertools import chain, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from jax.errors import JaxRuntimeError

from calque.device.memory.cell import read
from calque.device.runtime.executable import DEBUGGING
from calque.jitting.generated.arguments import arguments, cells
from calque.jitting.generated.numbers import Numbers, is_of_group
from calque.jitting.generated.placements import write_arrays
from calque.jitting.generated.results import are_simple, write_gradients, write_results
from calque.jitting.generated.source import LEAVE, Source
from calque.jitting.guards import OptimizerGuard
from calque.program.direct_call import Bare
from calque.program.donation import PICKED_ALONE, picker, protect
from calque.program.sinks import CellSink
from calque.program.sources import ArgumentSource, CellSource
from calque.state.versions import version_of
from calque.upstream import torch_c

if TYPE_CHECKING:
    from calque.jitting.program import JittedProgram

_MOST_CELLS = 64
_array = attrgetter("array")
_nowhere: deque[None] = deque(maxlen=0)
_SLOTS = repeat("array")


def is_simple(program: "JittedProgram") -> bool:
    """Returns True if the lines of this module can run a program."""
    one = program.recording
    others = (
        *(program.execution.bare is None, program.turned, program.may_raise),
        *(one.draws, one.seeded is not None, one.effects, one.rebound, one.flags, one.survivors),
        *(one.shells is not None, one.modes, one.passed, one.rewritten, one.checks.looks),
    )
    return (
        not any(others)
        and all(isinstance(sink, CellSink) for sink in one.sinks)
        and all(
            type(i.source) in (CellSource, ArgumentSource) or is_of_group(i.source)
            for i in program.inputs
        )
        and are_simple(program)
    )


def write_step(source: Source, program: "JittedProgram") -> None:
    """Write the lines that read the numbers, run a program and return its result.

    Args:
        source: of a function in which `args` are taken apart, and the cells of the arguments have
            names (see `arguments`).
        program: one that `is_simple`.
    """
    bare = program.execution.bare
    assert bare is not None
    conditions = " or ".join(text for text, _ in DEBUGGING)
    source.line(f"if {conditions}: {LEAVE}", *(held for _, held in DEBUGGING))
    numbers = _numbers(program, dict(bare.placed))
    if numbers.are_given:
        _write_numbers(source, numbers)
    donating = bool(program.donated)
    tight = program.execution.is_tight
    if donating and tight is not None:
        source.line(f"if {{}}(): {LEAVE}", tight)
    _write_gather(source, program, numbers)
    execute = write_arrays(source, program)
    source.line("{}.calls += 1", program)
    for optimizer in program.optimizers:  # what a scheduler looks at before it warns
        source.line("{}._opt_called = True", optimizer)
    if donating:
        _write_protection(source, program)
    if program.sinks or program.recording.gradients:
        _write_changing(source, program, bare._replace(execute=execute))
    else:
        source.line("try:")
        source.line("    outputs = {}({}(arrays))", bare.consume, execute)
        _write_failure(source, program)
        write_results(source, program)
    source.line("return result")


def _numbers(program: "JittedProgram", placed: dict[int, Any]) -> Numbers:
    guard = next((g for g in program.guards if type(g) is OptimizerGuard), None)
    passed = program.passed
    places = [i for i, one in enumerate(passed) if is_of_group(one.source)]
    sources: Sequence[Any] = [passed[i].source for i in places]
    return Numbers(guard, sources, [placed[i] for i in places])


def _write_numbers(source: Source, numbers: Numbers) -> None:
    if version_of is None:
        source.line(f"if not {{}}(): {LEAVE}", numbers.read)
    elif len(numbers.optimizers) == 1:
        line = f"if [*map({{}}, {{}}.param_groups)] != {{}}.seen and not {{}}(): {LEAVE}"
        source.line(line, version_of, numbers.optimizers[0], numbers, numbers.read)
    else:
        groups = "{}(map({}, {}))"
        line = f"if [*map({{}}, {groups})] != {{}}.seen and not {{}}(): {LEAVE}"
        held = chain.from_iterable, attrgetter("param_groups"), numbers.optimizers
        source.line(line, version_of, *held, numbers, numbers.read)


def _write_gather(source: Source, program: "JittedProgram", numbers: Numbers) -> None:
    """Write the list of the program's arguments."""
    count = program.recording.count
    for name, cell in zip(arguments(count), cells(count)):
        source.line(f"if {cell}.viewed: {cell} = {{}}({{}}({name}))", _Held, read)
    found = [one.source for one in program.passed]
    own = [one.cell for one in found if isinstance(one, CellSource)]
    place = 0
    items: list[str] = []
    if len(own) > _MOST_CELLS:
        source.line("arrays = [*map({}, {})]", _array, own)
    for index, one in enumerate(found):
        if isinstance(one, CellSource):
            text = f"{source.name(one.cell)}.array" if len(own) <= _MOST_CELLS else ""
        elif isinstance(one, ArgumentSource):
            text = f"{cells(count)[one.index]}.array"
        else:
            text = f"{source.name(numbers)}.arrays[{place}]"
            place += 1
        if len(own) <= _MOST_CELLS:
            items.append(text)
        elif text:
            source.line(f"arrays.insert({index}, {text})")
    if len(own) <= _MOST_CELLS:
        source.line(f"arrays = [{', '.join(items)}]")


def _write_protection(source: Source, program: "JittedProgram") -> None:
    donated = list(map(program.position, program.donated))
    pick = picker(donated)
    found = [program.inputs[i].source for i in program.donated]
    if len(found) <= _MOST_CELLS and all(isinstance(one, CellSource) for one in found):
        cells = [one.cell for one in found]  # type: ignore[union-attr]
        picked = "".join(f"{source.name(cell)}.array, " for cell in cells)
        picked = f"({picked})"
    else:
        picked = f"{source.name(pick)}(arrays)"
    alone = [PICKED_ALONE] * len(donated)
    source.line(f"if [*map({{}}, {picked})] != {{}}:", sys.getrefcount, alone)
    source.line("    {}(arrays, {}, {})", protect, donated, pick)


def _write_changing(source: Source, program: "JittedProgram", bare: Bare) -> None:
    """Write the lines that run the program and make its changes.

    An exception that another thread sets is raised after a call only, and one of a trace function
    at the begin of a line. So there is no call, and no new line, from where the program runs, which
    is where an iterator is unpacked, to where the last of its results is written.
    """
    written = program.fixed_targets
    if len(written) > _MOST_CELLS:
        _write_changing_many(source, program, bare)
        return
    targets = ", ".join("{}.array" for _ in written)
    put = f"; {targets}, = outputs[:{len(written)}]" if written else ""
    source.line("runs = map({}, map({}, (arrays,)))", bare.consume, bare.execute)
    if program.equal is not None:
        source.line("runs = map({}, runs)", program.equal.give)
    source.line("try:")
    source.line(f"    outputs, = runs{put}", *written)
    _write_failure(source, program)
    _write_rest(source, program)


def _write_changing_many(source: Source, program: "JittedProgram", bare: Bare) -> None:
    """As `_write_changing`, of many results: one call runs the program and writes them."""
    run = "map(done.append, runs)"
    put = "map(setattr, {}, {}, {}(done))"
    source.line("done = []")
    source.line("runs = map({}, map({}, (arrays,)))", bare.consume, bare.execute)
    if program.equal is not None:
        source.line("runs = map({}, runs)", program.equal.give)
    source.line("try:")
    source.indent()
    source.line("try:")
    held = program.fixed_targets, _SLOTS, chain.from_iterable
    source.line(f"    {{}}({{}}({run}, {put}))", _nowhere.extend, chain, *held)
    _write_failure(source, program)
    source.indent(-1)
    source.line("finally:")
    source.indent()
    source.line("if done:")
    source.indent()
    source.line("outputs = done[0]")
    _write_rest(source, program)
    source.indent(-2)


def _write_rest(source: Source, program: "JittedProgram") -> None:
    """Write the lines that change what is no array, and make the result."""
    if program.handles:
        source.line("{}({})", torch_c.increment_version, program.handles)
    write_gradients(source, program)
    write_results(source, program)


def _write_failure(source: Source, program: "JittedProgram") -> None:
    source.line("except {} as error:", JaxRuntimeError)
    source.line("    raise {}.failed(error) from None", program)


class _Held:
    """An array in the form of a cell."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array
