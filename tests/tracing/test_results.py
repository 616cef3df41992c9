"""What a graph returns is what the program returns: types, identity, containers."""

import gc
import sys
import types
import weakref
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import calque
from calque import TraceError

X = torch.arange(3.0)


class Pair(NamedTuple):
    first: Any
    second: Any


def test_sizes_stay_sizes_in_whatever_they_are() -> None:
    made = calque.trace(lambda x: (x.shape, Pair(x[None].size(), x), {"s": x.shape}), X)(X)
    assert [type(made[0]), type(made[1].first), type(made[2]["s"])] == [torch.Size] * 3
    assert made[1].first == (1, 3)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.sort(),
        lambda x: x[None].max(dim=1),
        lambda x: torch.linalg.slogdet(torch.eye(3) * x),
        lambda x: Pair(x.topk(2), 1),
    ],
)
def test_named_tuples_of_pytorch_have_their_fields(program: Any) -> None:
    made, eager = calque.trace(program, X)(X + 1), program(X + 1)
    assert type(made) is type(eager)
    torch.testing.assert_close(tuple(made), tuple(eager))


def test_a_container_in_two_places_is_one_and_new_at_each_run() -> None:
    def f(x: torch.Tensor) -> Any:
        part = [x * 2]
        return {"a": part, "b": part, "c": (part,)}

    graph = calque.trace(f, X)
    made = graph(X)
    assert made["a"] is made["b"] is made["c"][0]
    assert made["a"] is not graph(X)["a"]


def test_what_is_the_callers_is_returned_itself() -> None:
    shared, layer = ["a"], nn.Linear(3, 2)
    graph = calque.trace(lambda x, given: (shared, layer, given, layer(x)), X, [X, {"k": X}])
    given = [X + 1, {"k": X}]
    made = graph(X, given)
    assert made[0] is shared
    assert made[1] is layer
    assert made[2] is given
    torch.testing.assert_close(made[3], layer(X))


def test_a_parameter_made_inside_is_one() -> None:
    made = calque.trace(lambda x: nn.Parameter(x * 2, requires_grad=False), X)(X)
    assert type(made) is nn.Parameter
    assert not made.requires_grad


def test_types_are_those_of_the_run() -> None:
    layer = nn.Linear(3, 3)

    def f(x: torch.Tensor) -> Any:
        table = {torch.Tensor: 2, list: 3}
        known = type(layer.weight) is nn.Parameter, isinstance(list, type), type(len(table)) is int
        return x * table[type(x)], known, x.__class__ is torch.Tensor, type(x * 2).__name__

    made = calque.trace(f, X)(X)
    torch.testing.assert_close(made[0], X * 2)
    assert made[1:] == ((True, True, True), True, "Tensor")
    assert "type" not in globals()


def test_a_type_that_is_not_known_is_refused() -> None:
    with pytest.raises(TraceError, match="the type of .* is read"):
        calque.trace(lambda x: x * (2 if type(x.sum().item()) is float else 3), X)


@pytest.mark.parametrize("name", ["order", "set", "number"])
def test_a_change_that_was_there_before_is_refused_and_taken_back(name: str) -> None:
    cache, kinds, s = {"a": 1, "b": 2}, {"a"}, types.SimpleNamespace(number=0)

    def order(x: torch.Tensor) -> torch.Tensor:
        cache["a"] = cache.pop("a")
        return x

    def members(x: torch.Tensor) -> torch.Tensor:
        kinds.add("b")
        return x

    def number(x: torch.Tensor) -> torch.Tensor:
        s.number = 1
        return x

    with pytest.raises(TraceError, match=r"test_results\.py:\d+ in "):
        calque.trace({"order": order, "set": members, "number": number}[name], X)
    assert [*cache] == ["a", "b"]
    assert kinds == {"a"}
    assert s.number == 0


@pytest.mark.usefixtures("few_objects")
def test_nothing_of_the_program_is_kept_when_the_trace_has_ended() -> None:
    class Config:
        scale = 2

    config = Config()
    config.scale = 3
    gone = weakref.ref(config)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * config.scale

    gc.collect()
    gc.disable()
    try:
        graph = calque.trace(f, X)
        del f, config
        assert gone() is None
    finally:
        gc.enable()
    torch.testing.assert_close(graph(X), X * 3)


def test_what_the_engine_calls_of_the_program_is_watched() -> None:
    seen: list[Any] = []

    class Noting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(sys.gettrace())
            return x.relu()

    before = sys.gettrace()
    with pytest.raises(TraceError, match="seen changes"):
        calque.trace(nn.Sequential(Noting()), X)
    assert seen == []
    assert sys.gettrace() is before
