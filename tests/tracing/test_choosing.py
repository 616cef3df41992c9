"""`calque.trace(..., tracer=...)`: who makes the graph, and why."""

import copy
import logging
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import calque

x = torch.tensor([1.0, -4.0, 2.0])


def straight(x: Tensor) -> Tensor:
    return x.relu() + 1


def reads(x: Tensor) -> Tensor:
    scale = max(x.abs().tolist())
    return x[x > 0] / scale if scale > 1 else x


def draws(x: Tensor) -> Tensor:
    return x * random.random()


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.get_buffer("calls").add_(1)
        x += 1
        return self.norm(x) * float(x.max().item() > -100) + torch.rand(3)


def test_auto_takes_the_symbolic_tracer_where_it_can() -> None:
    graph = calque.trace(straight, x, tracer="auto")
    assert graph.meta["calque.tracer"] == "symbolic"
    assert graph.meta["calque.refused"] == {}
    assert graph.code == calque.trace(straight, x).code


def test_auto_records_what_reads_values_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="calque.tracing"):
        graph = calque.trace(reads, x, tracer="auto")
    assert graph.meta["calque.tracer"] == "record"
    assert "TraceError" in graph.meta["calque.refused"]["symbolic"]
    assert "test_choosing.py" in caplog.text
    assert torch.equal(graph(x.clone()), reads(x))
    with pytest.raises(calque.TraceError, match="gives .* now"):
        graph(x * 2)


def test_where_no_tracer_is_faithful_each_says_why() -> None:
    with pytest.raises(
        calque.TraceError, match=r"no tracer can capture(.|\n)*symbolic:(.|\n)*record:"
    ):
        calque.trace(draws, x, tracer="auto")


def test_what_the_program_raises_is_raised() -> None:
    def fails(x: Tensor) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        calque.trace(fails, x, tracer="auto")


def test_without_arguments_nothing_is_run() -> None:
    assert calque.trace(straight, tracer="auto").meta["calque.tracer"] == "symbolic"
    with pytest.raises(calque.TraceError):
        calque.trace(reads, tracer="auto")
    with pytest.raises(TypeError, match="needs example inputs"):
        calque.trace(straight, tracer="record")


@pytest.mark.parametrize("tracer", ["symbolic", "record", "export", "auto"])
def test_a_tracer_by_its_name(tracer: Any) -> None:
    graph = calque.trace(straight, x, tracer=tracer)
    assert graph.meta["calque.tracer"] == ("symbolic" if tracer == "auto" else tracer)
    assert torch.equal(graph(x), straight(x))


def test_an_unknown_tracer_is_refused() -> None:
    with pytest.raises(ValueError, match="one of symbolic, record, export, auto, not 'jit'"):
        calque.trace(straight, x, tracer="jit")  # type: ignore[arg-type]


@pytest.mark.parametrize("tracer", ["record", "auto"])
def test_nothing_is_left_of_the_run(tracer: Any) -> None:
    model, given = Counting(), torch.randn(2, 3)
    before, same = copy.deepcopy(model.state_dict()), given.clone()
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    graph = calque.trace(model, given, tracer=tracer)
    assert graph.meta["calque.tracer"] == "record"
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(given, same)
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)


def test_methods_are_traced_by_any_tracer() -> None:
    class Model(nn.Module):
        def encode(self, x: Tensor) -> Tensor:
            return x * 2 if x.sum().item() > -1e9 else x

    model = Model()
    graph = calque.trace(model.encode, x, tracer="auto")
    assert torch.equal(graph(x + 1), (x + 1) * 2)


class Leaves(torch.nn.Module):
    """Leaves behind what a call may leave."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.linear, self.counts = torch.nn.Linear(2, 2), counts
        self.count, self.seen = 0, []
        self.last: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x * max(x.tolist()[0])
        if self.counts:
            self.count += 1
            self.seen.append(x)
        self.linear(x).sum().backward()
        return x + 1


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("has_gradient", [True, False])
def test_a_recorded_trace_leaves_nothing_behind(counts: bool, has_gradient: bool) -> None:
    x, model = torch.ones(2, 2), Leaves(counts)
    if has_gradient:
        model.linear(x).sum().backward()
    kept = model.linear.weight.grad
    before = None if kept is None else kept.clone()
    if counts:
        with pytest.raises(calque.TraceError, match="self.count changes"):
            calque.trace(model, x, tracer="record")
    else:
        graph = calque.trace(model, x, tracer="record")
    assert (model.count, model.seen, model.last) == (0, [], None)
    assert model.linear.weight.grad is kept
    assert kept is None or torch.equal(kept, before)  # type: ignore[arg-type]
    if not counts:
        graph(x)
        assert torch.equal(model.last, x)
        assert model.linear.weight.grad is not None
