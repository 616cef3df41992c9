"""Attributes of modules that a program assigns: read in the same call, and there after each run."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch

import calque
from calque import TraceError
from calque.graph import JaxInterpreter
from calque.tracing import lower

X = torch.arange(1.0, 4.0)


class Keeps(torch.nn.Module):
    """Assigns a tensor and reads it again."""

    kept: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = {"double": x * 2}
        return self.kept["double"] + 1


class Outer(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 3


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("outer", [True, False])
def test_a_tensor_that_is_assigned_is_there_after_each_run(outer: bool, known: bool) -> None:
    inner = Keeps()
    model = Outer(inner) if outer else inner
    graph = calque.trace(model, X) if known else calque.symbolic_trace(model)
    assert "kept" not in vars(inner)
    for x in (X, -X):
        torch.testing.assert_close(graph(x), copy.deepcopy(model)(x))
        torch.testing.assert_close(inner.kept["double"], x * 2)


def test_an_attribute_is_assigned_on_the_way_that_was_taken() -> None:
    class Branching(Keeps):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:
                self.kept = x.exp()
            else:
                self.kept = x * 2
            return x + 1

    inner = Branching()
    graph = calque.trace(Outer(inner), X)
    for x in (X, -X):
        graph(x)
        kept = inner.kept
        copy.deepcopy(inner)(x)
        torch.testing.assert_close(kept, x.exp() if x.sum() > 0 else x * 2)


def test_a_lowered_graph_assigns_too_and_a_function_of_arrays_does_not() -> None:
    model = Outer(Keeps())
    lowered = lower(calque.trace(model, X))
    function = JaxInterpreter(lowered)
    torch.testing.assert_close(lowered(-X), (-X * 2 + 1) * 3)
    torch.testing.assert_close(model.inner.kept["double"], -X * 2)
    kept = model.inner.kept
    assert jax.jit(function)(jax.numpy.asarray(X.numpy())).shape == X.shape
    assert model.inner.kept is kept


def test_an_attribute_that_is_put_back_is_no_change() -> None:
    class Passing(Keeps):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept = x * 2
            result = self.kept + 1
            self.kept = None
            return result

    graph = calque.trace(Passing(), X)
    assert [node.op for node in graph.graph.nodes][1:-1] == ["call_function"] * 2
    torch.testing.assert_close(graph(-X), -X * 2 + 1)


def test_a_number_that_the_first_call_sets_stays_as_a_call_would_leave_it() -> None:
    class Window(torch.nn.Module):
        size = 5

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) <= self.size:
                self.size = len(x)
            return x.reshape(-1, self.size).sum(0)

    model = Window()
    graph = calque.trace(model, X)
    assert model.size == 3
    torch.testing.assert_close(graph(X * 2), model(X * 2))


class Config:
    kind: Any = None


def test_an_option_that_the_first_call_fills_in_stays() -> None:
    config = Config()

    def f(x: torch.Tensor) -> torch.Tensor:
        if config.kind is None:
            config.kind = "double"
        return x * 2 if config.kind == "double" else x

    assert calque.trace(f, X)(X).tolist() == [2, 4, 6]
    assert config.kind == "double"


class Counts(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = 1 if self.kept is None else self.kept + 1
        return x * self.kept


class Accumulates(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = x if self.kept is None else self.kept + x
        return self.kept * 2


class Caches(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kept is None:
            self.kept = torch.arange(len(x))
        return x * self.kept


class SetsOnOneWay(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            self.kept = 2
        return x * (self.kept or 1)


class Buffer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = self.kept + x
        return self.kept


@pytest.mark.parametrize("kind", [Counts, Accumulates, Caches, SetsOnOneWay, Buffer])
def test_what_depends_on_the_call_before_is_refused_and_taken_back(
    kind: Callable[[], torch.nn.Module],
) -> None:
    model = kind()
    before = dict(vars(model))
    with pytest.raises(TraceError, match=r"self\.kept") as caught:
        calque.trace(model, X)
    assert str(caught.value).startswith(f"{__file__}:")
    assert vars(model) == before


def test_what_was_computed_before_the_trace_is_used() -> None:
    model = Caches()
    model(X)
    torch.testing.assert_close(calque.trace(model, X)(-X), model(-X))


def test_a_function_that_remembers_forgets_the_trace() -> None:
    @functools.lru_cache
    def table(n: int) -> torch.Tensor:
        return torch.arange(n) * 2

    class Remembers(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if "own" not in vars(self):
                self.own = functools.lru_cache(lambda n: torch.ones(n))
            return x * table(len(x)) if x.sum() > 0 else x * self.own(len(x))

    model = Remembers()
    graph = calque.trace(model, X)
    assert table.cache_info().currsize == 0
    assert "own" not in vars(model)
    for x in (X, -X):
        torch.testing.assert_close(graph(x), model(x))
        assert type(model(x)) is torch.Tensor


class Table(torch.nn.Module):
    """Moves its own table to the device of its input, as many positional encodings do."""

    table: torch.Tensor

    def __init__(self, is_buffer: bool) -> None:
        super().__init__()
        table = torch.arange(3.0)
        if is_buffer:
            self.register_buffer("table", table)
        else:
            self.table = table
        self.register_buffer("last", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table = self.table.to(x.device)
        return x + self.table


class TableOfDtype(Table):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table = self.table.type_as(x).contiguous()
        y = x * self.table
        self.table = self.table.to(x.dtype)
        return y + self.table


class TableOnOneWay(Table):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table = self.table.to(x)
        if x.sum() > 0:
            self.table = self.table.float()
            return x + self.table
        return x * self.table


class TableThatCounts(Table):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table = self.table.to(x)
        self.table.add_(1)
        return x + self.table


@pytest.mark.parametrize("lowered", [False, True])
@pytest.mark.parametrize("is_buffer", [True, False])
@pytest.mark.parametrize("kind", [Table, TableOfDtype, TableOnOneWay, TableThatCounts])
def test_a_tensor_that_is_converted_to_what_it_is_stays(
    kind: type[Table], is_buffer: bool, lowered: bool
) -> None:
    model = kind(is_buffer)
    reference = copy.deepcopy(model)
    attributes, names, table = [*vars(model)], [*model.state_dict()], model.table
    graph = calque.trace(Outer(model), X)
    assert ([*vars(model)], [*model.state_dict()]) == (attributes, names)
    assert model.table is table
    graph = lower(graph) if lowered else graph
    for x in (X, -X, X):
        torch.testing.assert_close(graph(x), Outer(reference)(x), rtol=0, atol=0)


class TableOfAnother(Table):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table = self.last.to(x)
        return x + self.table


class TableOfDoubles(Table):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table = self.table.to(torch.float64)
        return x + self.table


class TableThatGrows(Table):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table = self.table.to(x)
        self.table = self.table + 1
        return x + self.table


@pytest.mark.parametrize("kind", [TableOfAnother, TableOfDoubles, TableThatGrows])
def test_a_buffer_that_becomes_another_tensor_is_refused(kind: type[Table]) -> None:
    model = kind(is_buffer=True)
    attributes, table = [*vars(model)], model.table
    with pytest.raises(TraceError, match=r"self\.table, a parameter or buffer, is replaced"):
        calque.trace(model, X)
    assert [*vars(model)] == attributes
    assert model.table is table
