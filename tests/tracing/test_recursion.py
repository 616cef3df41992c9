"""A program that nests as deeply as Python lets it can be traced and recorded."""

import sys

import torch
from torch import nn

import calque
from tests import new_process


class Nested(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_a_program_nests_as_deeply_as_by_itself() -> None:
    model: nn.Module = nn.ReLU()
    # Python 3.12 has a second limit for calls through C, which cannot be raised: 240 are too many.
    for _ in range(150 if sys.version_info[:2] == (3, 12) else 180):
        model = Nested(model)
    x = torch.tensor([-1.0, 2.0])
    limit = sys.getrecursionlimit()
    graphs = calque.trace(model, x), calque.record(model, x).graph()
    assert all(torch.equal(graph(x), model(x)) for graph in graphs)
    assert not calque.diff(*graphs, x)
    assert sys.getrecursionlimit() == limit


def test_a_limit_that_the_program_sets_stays() -> None:
    limit = sys.getrecursionlimit()

    def program(x: torch.Tensor) -> torch.Tensor:
        sys.setrecursionlimit(limit + 7)
        return x + 1

    try:
        calque.record(program, torch.ones(2))
        assert sys.getrecursionlimit() == limit + 7
    finally:
        sys.setrecursionlimit(limit)


def test_endless_recursion_is_an_error_whatever_the_stack() -> None:
    new_process.check("""
import sys, threading
import torch, calque

def endless(x):
    return endless(x + 1)

def attempt():
    for capture in (calque.trace, calque.record):
        try:
            capture(endless, torch.ones(2))
        except RecursionError:
            ended.append(capture)

ended = []
threading.stack_size(1 << 20)
thread = threading.Thread(target=attempt)
thread.start()
thread.join()
sys.setrecursionlimit(10_000)
attempt()
assert len(ended) == 4
""")
