"""Graphs that apply an `autograd.Function` keep its gradient, wherever they are traced again."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import calque

X = torch.tensor([1.0, -2.0, 3.0])


class Squared(torch.autograd.Function):
    """Its gradient is not that of its operators."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, times: int = 1) -> torch.Tensor:
        return x * x * times

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * 3, None


class Outer:
    class Inner(Squared):
        pass


class Layer(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Outer.Inner.apply(x, 2) + Squared.apply(x)


AGAIN: dict[str, Callable[[torch.fx.GraphModule], Any]] = {
    "copied": copy.deepcopy,
    "pickled": lambda graph: pickle.loads(pickle.dumps(graph)),
    "traced": lambda graph: calque.trace(graph, X),
    "called": lambda graph: calque.trace(lambda x: graph(x) * 1, X),
    "symbolic": calque.symbolic_trace,
    "torch.fx": torch.fx.symbolic_trace,
    "pickled twice": lambda graph: pickle.loads(
        pickle.dumps(pickle.loads(pickle.dumps(calque.trace(graph, X))))
    ),
}


@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("tracer", ["symbolic", "record"])
def test_a_graph_keeps_the_gradient_of_a_function(again: str, tracer: str) -> None:
    graph = AGAIN[again](calque.trace(Layer(), X, tracer=tracer))
    x = X.clone().requires_grad_()
    y = graph(x)
    y.sum().backward()
    assert y.tolist() == (3 * X * X).tolist()
    assert x.grad is not None
    assert x.grad.tolist() == [6.0] * 3


def test_the_module_of_applications_has_no_other_names() -> None:
    from calque.tracing.symbolic import applications

    for name in ("nothing", "apply_", "apply_zz", "apply_61"):
        assert not hasattr(applications, name)
