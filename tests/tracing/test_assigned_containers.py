"""Lists, tuples and dictionaries that a program assigns to attributes, by either tracer."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import calque


class TwoLists(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.first = [x * 2]
        self.second = [x * 3]
        return self.first[0] + self.second[0]


class Several(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.named = {"double": x * 2}
        self.pair = (x, x + 1)
        self.last = x - 1
        return self.named["double"] + self.pair[1] + self.last


class Appends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        self.outputs = []
        for layer in self.layers:
            x = layer(x)
            self.outputs.append(x)
        return x


class Constants(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.factors = [2, (3, 4.0)]
        self.sizes = [*x.shape]
        return x * self.factors[0] + self.sizes[0]


def held(program: nn.Module) -> dict[str, Any]:
    return {key: value for key, value in vars(program).items() if key[0] != "_"}


TRACERS = {
    "trace": calque.trace,
    "record": lambda program, x: calque.record(program, x).graph(),
    "aten": lambda program, x: calque.record(program, x).graph("aten"),
}


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("kind", [TwoLists, Several, Appends, Constants])
def test_what_is_assigned_in_containers_is_assigned_by_the_graph(kind: Any, tracer: str) -> None:
    program = kind()
    program(torch.ones(3))  # the first call creates the attributes
    graph = TRACERS[tracer](program, torch.ones(3))
    for _ in range(2):
        x = torch.randn(3)
        found, left = graph(x), held(program)
        torch.testing.assert_close(found, program(x))
        torch.testing.assert_close(left, held(program))


def test_a_list_that_grows_is_refused() -> None:
    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.seen = [*self.seen, x * 2]
            return self.seen[-1] * len(self.seen)

    for tracer in TRACERS.values():
        program = Grows()
        program(torch.ones(3))
        with pytest.raises(calque.TraceError, match=r"self\.seen"):
            tracer(program, torch.ones(3))


def moves(named: dict[str, Tensor]) -> Tensor:
    named["b"] = named["a"] * 2
    named["a"] = named.pop("a") + 1
    return named["b"].sum()


def test_a_dictionary_argument_gets_the_order_of_keys_that_the_program_gives_it() -> None:
    graph = calque.trace(moves, {"a": torch.ones(2), "c": torch.ones(2)})
    found, expected = ({"a": torch.zeros(2), "c": torch.ones(2)} for _ in range(2))
    assert torch.equal(graph(found), moves(expected))
    assert [*found] == [*expected] == ["c", "b", "a"]
    torch.testing.assert_close(found, expected)
    recording = calque.record(moves, {"a": torch.ones(2)})
    with pytest.raises(calque.TraceError, match="changes the order of the keys in a dictionary"):
        recording.graph()


def test_a_changed_argument_cannot_be_lowered() -> None:
    def program(given: list[Tensor]) -> Tensor:
        given.append(given[0] + 1)
        return given[-1]

    with pytest.raises(calque.TraceError, match="changes a container or an object among its"):
        calque.lower(calque.trace(program, [torch.ones(2)]))
