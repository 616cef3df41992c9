"""The state of random numbers that a program asks for and sets: `torch.random.fork_rng`."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import calque

X = torch.ones(2)


def forks(x: torch.Tensor) -> Any:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(3)
        noise = torch.randn(2)
    return x + noise, torch.randn(2)


def forks_all(x: torch.Tensor) -> Any:
    with torch.random.fork_rng():
        noise = torch.randn(2) if x.sum() > 0 else torch.rand(2)
    return x + noise, torch.randn(2)


def by_hand(x: torch.Tensor) -> Any:
    state = torch.get_rng_state()
    first = torch.randn(2)
    torch.set_rng_state(state)
    return x + first, torch.rand(2), state.sum()


def seeds(x: torch.Tensor) -> Any:
    torch.manual_seed(3)
    return x + torch.randn(2)


def _cleaned(program: Callable[..., Any], x: torch.Tensor) -> Any:
    graph = copy.deepcopy(calque.trace(program, x))
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


GRAPHS: dict[str, Callable[..., Any]] = {
    "traced": calque.trace,
    "recorded": lambda program, x: calque.record(program, x).graph(),
    "traced again": lambda program, x: calque.trace(calque.trace(program, x), x),
    "recorded again": lambda program, x: calque.record(calque.trace(program, x), x).graph(),
    "cleaned": _cleaned,
}


@pytest.mark.parametrize("graph_of", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("program", [forks, forks_all, by_hand, seeds])
def test_a_graph_draws_what_the_program_draws(program: Any, graph_of: Any) -> None:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        graph = graph_of(program, X)
        drawn = []
        for run in (program, graph):
            torch.manual_seed(1)
            drawn.append((run(X), run(X + 1), torch.rand(())))
    torch.testing.assert_close(*drawn, rtol=0, atol=0)


def test_tracing_draws_nothing() -> None:
    state = torch.get_rng_state()
    for program in (forks, forks_all, by_hand):
        calque.trace(program, X)
    assert torch.equal(torch.get_rng_state(), state)


def test_states_of_the_device_are_put_back() -> None:
    def program(x: torch.Tensor) -> Any:
        with torch.random.fork_rng():
            noise = torch.rand(2, device="jax")
        return x + noise, torch.rand(2, device="jax")

    x = X.to("jax")
    with torch.random.fork_rng():
        results = []
        for run in (program, calque.trace(program, x), calque.record(program, x).graph()):
            torch.manual_seed(1)
            results.append([each.tolist() for each in run(x)])
    assert results[0] == results[1] == results[2]


def test_operators_set_no_state() -> None:
    with pytest.raises(calque.TraceError, match="state of random numbers"):
        calque.record(forks, X).graph("aten")


def raises_inside(x: torch.Tensor) -> Any:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(3)
        with torch.random.fork_rng(devices=()):
            noise = torch.randn(2)
        x.view(2)
    return x + noise


def raises_between(x: torch.Tensor) -> Any:
    state = torch.get_rng_state()
    noise = torch.randn(2) + x.view(2)
    torch.set_rng_state(state)
    return noise


@pytest.mark.parametrize("graph_of", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("program", [raises_inside, raises_between])
def test_an_error_leaves_the_random_state_as_the_program_does(program: Any, graph_of: Any) -> None:
    graph = graph_of(program, X)
    left = []
    for run in (program, graph):
        torch.manual_seed(0)
        with pytest.raises(RuntimeError):
            run(torch.ones(3))
        left.append(torch.get_rng_state())
    assert torch.equal(left[0], left[1]), program
