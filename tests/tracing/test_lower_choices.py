"""Programs that decide by tensors, as operators: one node chooses."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import calque
from calque.graph import JaxInterpreter
from calque.upstream import torch_c


class Chooses(nn.Module):
    """Both ways use one layer, so that the graph has two names for it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if x.mean() > 0:
            x = self.second(x).relu() + x
        else:
            x = self.first(x).sin()
        return x * 2


def test_values_gradients_and_the_program_itself() -> None:
    torch.manual_seed(0)
    model = Chooses()
    kept = list(model.parameters())
    lowered = calque.lower(calque.trace(model, torch.ones(4, 3)))
    assert all(a is b for a, b in zip(model.parameters(), kept, strict=True))
    assert torch_c.functorch.peek_interpreter_stack() is None
    ways = set()
    for sign in (20, -20):
        x = torch.full((4, 3), float(sign))
        ways.add(bool(model.first(x).mean() > 0))
        found, expected = lowered(x), model(x)
        torch.testing.assert_close(found, expected)
        a, b = (
            torch.autograd.grad(y.sum(), kept, materialize_grads=True) for y in (found, expected)
        )
        torch.testing.assert_close(a, b)
        array = JaxInterpreter(lowered)(x.numpy())
        torch.testing.assert_close(torch.tensor(array.tolist()), expected.detach())
    assert ways == {True, False}


def given_back_and_written(x: Tensor) -> Any:
    y = x * 1
    z = y if x.sum() > 0 else x * 2
    z += 1
    return y, z


def taken_and_written(x: Tensor) -> Any:
    y = x * 1
    z = y[0] if x.sum() > 0 else x[0] * 2
    y.mul_(3)
    return y, z


def written_inside(x: Tensor) -> Tensor:
    y = x * 1
    if x.sum() > 0:
        y.add_(1)
    return y


@pytest.mark.parametrize(
    "program", [given_back_and_written, taken_and_written, written_inside], ids=lambda f: f.__name__
)
def test_a_copy_that_would_not_be_written_to_is_refused(program: Any) -> None:
    graph = calque.trace(program, torch.ones(2, 2))
    x = torch.ones(2, 2)
    torch.testing.assert_close(graph(x.clone()), program(x.clone()))
    with pytest.raises(calque.TraceError, match="branch of (the|a) choice"):
        calque.lower(graph)
    assert torch_c.functorch.peek_interpreter_stack() is None
