"""Backwards of functional modules that run their parts again, or that PyTorch refuses."""

import jax
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import calque


class Checkpointed(nn.Module):
    def __init__(self, parts: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.last, self.parts = nn.Linear(4, 3), parts

    def forward(self, x: Tensor) -> Tensor:
        if self.parts > 1:
            hidden = checkpoint_sequential(self.first, self.parts, x, use_reentrant=False)
        else:
            hidden = checkpoint(self.first, x, use_reentrant=False)
        return self.last(hidden)


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("parts", [1, 2])
def test_checkpoints_compute_again_with_the_parameters_that_are_given(
    parts: int, device: str
) -> None:
    module = Checkpointed(parts)
    x = torch.randn(5, 4)
    module(x).square().sum().backward()
    expected = {name: p.grad.clone() for name, p in module.named_parameters()}
    apply, params = calque.functional(module.to(device))
    others = {name: value * 0 for name, value in params.items()}

    def loss(params, x):
        return (apply(params, x) ** 2).sum()

    found = jax.jit(jax.grad(loss))(params, x.numpy())
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient.numpy(), rtol=1e-4, atol=1e-5)
    assert all(not np.any(value) for value in jax.grad(loss)(others, x.numpy()).values())


def test_a_graph_that_is_used_up_is_refused_also_where_no_other_result_has_a_gradient() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self) -> Tensor:
            y = (self.weight**2).sum()
            torch.autograd.grad(y, self.weight)
            return y

    apply, params = calque.functional(Norm())
    assert apply(params) == 3
    with pytest.raises(calque.TraceError, match=r"used up itself.*"):
        jax.grad(apply)(params)
