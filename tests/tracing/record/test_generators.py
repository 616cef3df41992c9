"""Generators of random numbers: a graph makes again what the program makes, and sets no other."""

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import calque

GENERATOR = torch.Generator()
X, Y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 0.5, 2.0])


class Noise(nn.Module):
    def forward(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return x + torch.randn(x.shape, generator=generator)


class MakesGenerators(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.noise = Noise()

    def forward(self, x: Tensor) -> Any:
        generator = torch.Generator(device="cpu").manual_seed(int(x.max()))
        first = self.noise(x, generator)
        state = generator.get_state()
        second = x.clone().normal_(generator=generator)
        generator.set_state(state)
        third = torch.poisson(x, generator), torch.randperm(4, generator=generator)
        return first, second, third, torch.rand(3), x * generator.initial_seed() ** 0


def again(graph: Any, x: Tensor) -> Any:
    torch.manual_seed(3)
    return graph(x)


def test_generators_made_inside_are_made_by_each_run() -> None:
    model = MakesGenerators()
    recording = calque.record(model, X)
    assert isinstance(torch.Generator(), torch.Generator)
    for graph in (recording.graph("module"), recording.graph()):
        copies = pickle.loads(pickle.dumps(graph)), calque.record(graph, X).graph()
        for each in (graph, *copies):
            for x in (X, Y.clamp(max=3.0)):
                torch.testing.assert_close(again(each, x), again(model, x), rtol=0, atol=0)
    with pytest.raises(calque.TraceError, match=r"the program creates a torch\.Generator"):
        recording.graph("aten")


def seeds(x: Tensor) -> Tensor:
    GENERATOR.manual_seed(3)
    return x + torch.randn(3, generator=GENERATOR)


def seeds_afterwards(x: Tensor) -> Tensor:
    y = x + torch.randn(3, generator=GENERATOR)
    GENERATOR.manual_seed(0)
    return y


def seeds_what_it_is_given(x: Tensor, generator: torch.Generator) -> Tensor:
    generator.manual_seed(3)
    return x + torch.randn(3, generator=generator)


def seeds_the_default(x: Tensor) -> Tensor:
    torch.default_generator.manual_seed(3)
    return x + torch.randn(3)


@pytest.mark.parametrize(
    ("program", "args"),
    [
        (seeds, (X,)),
        (seeds_afterwards, (X,)),
        (seeds_what_it_is_given, (X, torch.Generator())),
        (seeds_the_default, (X,)),
    ],
)
def test_a_state_that_the_program_sets_is_no_part_of_a_graph(program: Any, args: Any) -> None:
    GENERATOR.manual_seed(1)
    before = GENERATOR.get_state()
    message = r"the program sets the state of the torch\.Generator"
    with pytest.raises(calque.TraceError, match=message):
        calque.trace(program, *args)
    assert torch.equal(GENERATOR.get_state(), before)
    recording = calque.record(program, *args)
    with pytest.raises(calque.TraceError, match=message):
        recording.graph()


def test_draws_from_a_generator_outside_go_on() -> None:
    def draws(x: Tensor) -> Tensor:
        drawn = torch.randn(3, generator=GENERATOR) + torch.randperm(3, generator=GENERATOR)
        drawn = drawn + torch.poisson(x, GENERATOR)
        return x + drawn + nn.init.normal_(torch.empty(3), generator=GENERATOR)

    def seeded(function: Any) -> list[Tensor]:
        GENERATOR.manual_seed(5)
        return [function(Y), function(X)]

    for graph in (calque.trace(draws, X), calque.record(draws, X).graph()):
        assert all(map(torch.equal, seeded(graph), seeded(draws)))


def test_a_seed_is_set_by_a_graph_that_was_pickled() -> None:
    def program(x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return x + torch.rand(3)

    graph = pickle.loads(pickle.dumps(calque.record(program, X).graph()))
    torch.manual_seed(1)
    assert torch.equal(graph(Y), program(Y))
