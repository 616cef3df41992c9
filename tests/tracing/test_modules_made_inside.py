"""Modules that the traced function itself makes."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import calque
from calque import TraceError


def attends(x: torch.Tensor) -> torch.Tensor:
    return nn.MultiheadAttention(4, 2)(x, x, x)[0]


def embeds(x: torch.Tensor) -> torch.Tensor:
    return nn.Embedding(3, 4)(torch.tensor([0, 2])) * x


@pytest.mark.parametrize(
    "program",
    [
        lambda x: nn.Linear(4, 3)(x),
        lambda x: nn.LayerNorm(4)(x),
        lambda x: nn.LSTM(4, 3)(x)[0],
        lambda x: nn.Sequential(nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2), nn.ReLU())(x[None]),
        lambda x: nn.Parameter(torch.ones(4)) * x,
        attends,
        embeds,
    ],
)
def test_each_call_makes_them_anew(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    graph = calque.trace(program, x)
    for scale in (1, 2):
        results = []
        for call in (program, graph):
            torch.manual_seed(scale)
            results.append(call(x * scale))
        torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
        assert results[1].requires_grad == results[0].requires_grad
    with torch.no_grad():
        assert not graph(x).requires_grad


def test_what_is_computed_is_a_leaf_only_without_gradients() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y.relu() if y.grad_fn is None and y.is_leaf else y * 3

    graph = calque.trace(program, torch.ones(2))
    assert torch.equal(graph(-torch.ones(2)), program(-torch.ones(2)))
    with pytest.raises(TraceError, match="requires_grad"):
        graph(torch.ones(2, requires_grad=True))
    with torch.no_grad():  # nothing required a gradient before
        assert torch.equal(graph(-torch.ones(2)), program(-torch.ones(2)))


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_only_a_leaf_is_known_to_have_no_node() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.grad_fn is None else x * 3

    leaf = torch.ones(2)
    graph = calque.trace(program, leaf)
    assert torch.equal(graph(leaf), program(leaf))
    with pytest.raises(TraceError, match="is_leaf"):
        graph(torch.ones(2, requires_grad=True) + 1)
    with pytest.raises(TraceError, match="has its .grad_fn read"):
        calque.trace(program, torch.ones(2, requires_grad=True) + 1)
    with pytest.raises(TraceError, match="has its .grad_fn read"):
        calque.symbolic_trace(program)


def test_a_graph_of_a_program_that_makes_modules_is_traced_again() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return nn.BatchNorm1d(3)(nn.LayerNorm(3)(x))

    x = torch.randn(4, 3)
    is_enabled = torch.is_grad_enabled
    graph = calque.trace(calque.trace(program, x), x)
    torch.testing.assert_close(graph(x), program(x))
    assert torch.is_grad_enabled is is_enabled
