"""Gradients through buffers that the compiled function writes to."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import calque  # noqa: F401


class Scaled(nn.Module):
    def __init__(self, scale: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 4), scale
        self.number: Tensor
        self.mean: Tensor
        self.register_buffer("number", torch.zeros(()))
        self.register_buffer("mean", torch.ones(4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y * self.scale(self, y)


def counted(self: Any, y: Tensor) -> Tensor:
    self.number += 1
    return self.number


def averaged(self: Any, y: Tensor) -> Tensor:
    self.mean.mul_(0.5).add_(y.detach().mean(0), alpha=0.5)
    return self.mean / (self.mean.norm() + 1)


def partly(self: Any, y: Tensor) -> Tensor:
    self.mean[1:3] += 2
    return self.mean.exp().tanh()


def twice(self: Any, y: Tensor) -> Tensor:
    self.number += 1
    first = self.number * 2
    self.number.mul_(first)
    return first + self.number


def corrected(self: Any, y: Tensor) -> Tensor:
    self.steps += 1
    return 1 / (1 - 0.9**self.steps)


def copied_before(self: Any, y: Tensor) -> Tensor:
    before = self.number.clone()
    self.number += 3
    return before * self.number + 1


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize(
    "scale", [counted, averaged, partly, twice, corrected, copied_before], ids=lambda f: f.__name__
)
def test_the_gradient_has_the_values_that_the_forward_computed(scale: Any, device: str) -> None:
    torch.manual_seed(0)
    plain = Scaled(scale)
    other = Scaled(scale).to(device)
    other.load_state_dict(plain.state_dict())
    compiled = torch.compile(other, backend="calque")
    for _ in range(3):
        x = torch.randn(3, 4)
        for model, call in ((plain, plain), (other, compiled)):
            model.zero_grad()
            given = x.to(model.mean.device, copy=True).requires_grad_()
            call(given).square().sum().backward()
        for a, b in zip(plain.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-4, atol=1e-5)  # pyright: ignore[reportOptionalMemberAccess]
        for a, b in zip(plain.buffers(), other.buffers(), strict=True):
            torch.testing.assert_close(b.cpu(), a)


def test_what_is_written_after_it_was_read_has_no_gradient() -> None:
    """As in PyTorch, which saved the tensor for the gradient."""

    def step(x: Tensor, number: Tensor) -> Tensor:
        y = x * number
        number += 1
        return y

    x, number = torch.ones(3, device="jax", requires_grad=True), torch.ones((), device="jax")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.compile(step, backend="calque")(x, number).sum().backward()
    assert number.item() == 1
