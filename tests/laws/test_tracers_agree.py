"""Whichever tracer a program went through, its graph computes what the program computes."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from calque import TraceError
from tests.laws.programs import PROGRAMS
from tests.laws.tracers import TRACERS

_NO_SHAPES = "without an example no shape is known"
_NO_ASSIGNMENT = "as torch.fx: proxies have no item assignment"
_FROZEN = "as torch.fx: what is made inside the program, or is a buffer, is a constant"
_NOT_IN_PLACE = "as torch.fx: x += y makes a new x"
RAISES = (_NO_SHAPES, _NO_ASSIGNMENT)
CANNOT: dict[tuple[str, str], str] = {
    ("shapes_decide", "calque.symbolic_trace"): _NO_SHAPES,
    ("iterates", "calque.symbolic_trace"): _NO_SHAPES,
    ("shapes_decide", "calque.tracing.fx"): _NO_SHAPES,
    ("iterates", "calque.tracing.fx"): _NO_SHAPES,
    ("writes_through_a_view", "calque.tracing.fx"): _NO_ASSIGNMENT,
    ("writes_to_its_input", "calque.tracing.fx"): _NOT_IN_PLACE,
    ("accumulates", "calque.tracing.fx"): _FROZEN,
    ("Counter", "calque.tracing.fx"): _FROZEN,
}


def outcome(program: Any, owner: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """What a call gives, and what it has changed: its arguments, the buffers of `owner`."""
    # The second run uses the state after the first.
    results = [program(*copy.deepcopy(args)) for _ in range(2)]
    own = copy.deepcopy(args)
    result = program(*own)
    buffers = dict(owner.named_buffers()) if isinstance(owner, nn.Module) else {}
    return {"results": [*results, result], "arguments": own, "buffers": copy.deepcopy(buffers)}


@pytest.mark.sampled(80)
@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_graph_computes_what_the_program_does(name: str, tracer: str) -> None:
    program, draw = PROGRAMS[name]()
    twin = copy.deepcopy(program)
    reason = CANNOT.get((name, tracer))
    if reason in RAISES:
        with pytest.raises((TraceError, TypeError, RuntimeError)):
            TRACERS[tracer](program, *draw())
        return
    graph = TRACERS[tracer](program, *draw())
    # Both continue with the same state, which tracers that run the program may have changed.
    owner = graph if isinstance(graph, nn.Module) and tracer == "torch.export" else program
    if isinstance(program, nn.Module):
        copied = dict(twin.named_buffers())
        for buffer_name, buffer in owner.named_buffers():
            buffer.copy_(copied[buffer_name])
    args = draw()
    found, expected = outcome(graph, owner, args), outcome(twin, twin, args)
    if reason is not None:
        with pytest.raises(AssertionError):
            torch.testing.assert_close(found, expected)
        return
    torch.testing.assert_close(found, expected)
