"""Operators that return one of their arguments, in programs that compare tensors with `is`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import calque
from calque.tracing import lower

X = torch.randn(2, 3)


def chain(x: Tensor) -> Any:
    y = x.exp()
    z = y * 2
    w = z.sin()
    return w + z * y, w is z, y is x


def converted(x: Tensor) -> Any:
    y = x.exp()
    z = y.contiguous()
    w = z * 1
    return y + w + z, z is y, w is z


def two_operands(x: Tensor) -> Any:
    a, b = x.exp(), x.cos()
    c = a + b
    d = c * a - b
    return d / (a + 2) + c, c is a, d is b


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Any:
        first = x
        for _ in range(3):
            x = self.layer(x).relu() + x
        return x, x is first


@pytest.mark.parametrize("lowered", [False, True])
@pytest.mark.parametrize(
    "program", [chain, converted, two_operands, Residual()], ids=["chain", "kept", "two", "layers"]
)
def test_new_tensors_of_equal_shapes_are_told_apart(
    program: Callable[[Tensor], Any], lowered: bool
) -> None:
    graph: Any = calque.trace(program, X)
    again = calque.trace(graph, X)
    for one in (graph, again):
        one = lower(one) if lowered else one
        for x in (X, -X):
            (found, *answers), (expected, *others) = one(x), program(x)
            torch.testing.assert_close(found, expected)
            assert answers == others
