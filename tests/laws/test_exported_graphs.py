"""Graphs of `torch.export` run wherever others do, and a recording of one computes what it does."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import calque
from tests.laws.programs import PROGRAMS
from tests.laws.test_graphs_again import recorded_again
from tests.laws.test_graphs_run import MAKES_TENSORS, RUNNERS, _on
from tests.laws.tracers import TRACERS

pytestmark = [
    # Raised by copying an exported graph.
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The tensor attribute:UserWarning"),
]
FAST = ("pointwise", "writes_to_its_input", "Counter")


def exported(name: str) -> tuple[Any, Any, Any]:
    """A graph, the program, and what draws inputs."""
    program, draw = PROGRAMS[name]()
    twin = copy.deepcopy(program)
    graph = TRACERS["torch.export"](program, *draw())
    if isinstance(program, nn.Module):
        graph.load_state_dict(twin.state_dict(), strict=False)
    return graph, twin, draw


ALL = [n if n in FAST else pytest.param(n, marks=pytest.mark.conformance) for n in PROGRAMS]


@pytest.mark.parametrize("runner", ["device", "calque.jit"])
@pytest.mark.parametrize("name", ALL)
def test_an_exported_graph_runs_on_the_device(name: str, runner: str) -> None:
    graph, program, draw = exported(name)
    args = draw()
    if name in MAKES_TENSORS:  # operators take the device of new tensors
        errors = (RuntimeError, ValueError, TypeError, calque.TraceError)
        with pytest.raises(errors, match="cpu|CPU"):
            RUNNERS[runner](graph, args)
        return
    found = _on("cpu", RUNNERS[runner](graph, copy.deepcopy(args)))
    expected = _on("cpu", (program(*args), args))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def outcome(graph: Any, args: Any) -> Any:
    graph, args = copy.deepcopy((graph, args))
    result = graph(*args)
    return _on("cpu", (result, args, dict(sorted(graph.named_buffers()))))


@pytest.mark.parametrize("name", ALL)
def test_a_recording_of_an_exported_graph_computes_what_it_does(name: str) -> None:
    graph, _, draw = exported(name)
    args = draw()
    again = recorded_again(graph, args)
    for each in (args, draw()):
        torch.testing.assert_close(outcome(again, each), outcome(graph, each), equal_nan=True)
    once_more = recorded_again(again, args)
    differences = calque.diff(once_more, recorded_again(once_more, args))
    assert not differences, differences
