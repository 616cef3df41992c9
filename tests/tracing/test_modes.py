"""Blocks of `torch.no_grad` and `torch.autocast` in graphs: left on errors, as they are found."""

import copy
import pickle
from typing import Any

import pytest
import torch

import calque

X = torch.ones(3, requires_grad=True)
GOOD, BAD = torch.zeros(3), torch.zeros(2)


def blocks(x: torch.Tensor, fail: torch.Tensor) -> Any:
    with torch.no_grad():
        before = x * 2
        with torch.autocast("cpu", torch.bfloat16), torch.enable_grad():
            product = x[:, None] @ (before + fail)[None]
    return before, product, x * before


def make_symbolic() -> Any:
    return calque.trace(blocks, X, GOOD)


def make_recorded() -> Any:
    return calque.record(blocks, X, GOOD).graph()


def again(graph: Any) -> Any:
    return calque.trace(graph, X, GOOD)


def modes() -> tuple:
    nesting = torch.autocast_increment_nesting(), torch.autocast_decrement_nesting()
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), nesting


MAKERS = [make_symbolic, make_recorded]
AGAIN = [lambda graph: graph, copy.deepcopy, lambda graph: pickle.loads(pickle.dumps(graph)), again]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("once_more", AGAIN)
def test_a_graph_that_raises_leaves_its_blocks(make: Any, once_more: Any) -> None:
    graph = once_more(make())
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            before = modes()
            with pytest.raises(RuntimeError):
                graph(X, BAD)
            assert modes() == before


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("once_more", AGAIN)
def test_a_block_gives_back_the_mode_that_it_finds(make: Any, once_more: Any) -> None:
    graph = once_more(make())
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            expected = blocks(X, GOOD)
            found = graph(X, GOOD)
            assert torch.is_grad_enabled() is enabled
        for a, b in zip(found, expected, strict=True):
            assert (a.requires_grad, a.dtype) == (b.requires_grad, b.dtype)
            torch.testing.assert_close(a, b)


def test_a_mode_that_a_program_sets_for_good_stays_set_where_it_raises() -> None:
    def f(x, fail):
        torch.set_grad_enabled(False)
        return x * 2 + fail

    graph = calque.trace(f, X, GOOD)
    for program in (f, graph):
        with torch.enable_grad():
            with pytest.raises(RuntimeError):
                program(X, BAD)
            assert not torch.is_grad_enabled()


@pytest.mark.parametrize("backend", ["eager", "calque"])
def test_a_graph_with_blocks_compiles(backend: str) -> None:
    def f(x):
        with torch.no_grad():
            y = x.sin()
        return x * y

    graph = calque.trace(f, X)
    compiled = torch.compile(graph, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(X), f(X))
    gradient = torch.autograd.grad(compiled(X).sum(), X)
    torch.testing.assert_close(gradient, torch.autograd.grad(f(X).sum(), X))


def test_differences_are_found_with_blocks_left_too() -> None:
    before = modes()
    with pytest.raises(RuntimeError):
        calque.diff(make_symbolic(), make_symbolic(), X, BAD)
    assert modes() == before


def test_autocast_is_as_it_was_where_lowering_raises() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ x).nonzero()

    recording = calque.record(program, torch.ones(2, 2))
    try:
        with pytest.raises(calque.TraceError, match="nonzero"):
            calque.lower(recording.graph())
        assert not torch.is_autocast_enabled("cpu")
    finally:
        torch.set_autocast_enabled("cpu", False)


def test_a_graph_of_a_graph_leaves_gradients_on_where_a_guard_raises() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
            return y + 1 if y.sum() > 0 else y

    graph = calque.record(program, torch.ones(3)).graph()
    again = calque.record(graph, torch.ones(3)).graph()
    with pytest.raises(calque.TraceError, match="when this was recorded"):
        again(-torch.ones(3))
    assert torch.is_grad_enabled()
