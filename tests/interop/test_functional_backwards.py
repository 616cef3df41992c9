"""Backwards of functional modules that run their parts again, or that PyTorch refuses."""

from typing import Any

import jax
import jax.numpy as jnp
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
    with pytest.raises(calque.TraceError, match=r"already freed"):
        jax.grad(apply)(params)


def test_hooks_of_parameters_see_the_gradients() -> None:
    module = torch.nn.Linear(3, 2)
    module.weight.register_hook(lambda g: g.clamp(-0.1, 0.1))
    module.bias.register_hook(lambda g: g * 2)
    x = torch.randn(4, 3)
    module(x).square().sum().backward()
    assert module.weight.grad is not None and module.bias.grad is not None
    apply, params = calque.functional(module)

    def loss(params: Any) -> Any:
        return (apply(params, x.numpy()) ** 2).sum()

    found = jax.jit(jax.grad(loss))(params)
    np.testing.assert_allclose(found["weight"], module.weight.grad, rtol=1e-5)
    np.testing.assert_allclose(found["bias"], module.bias.grad, rtol=1e-5)
    module.bias.register_hook(lambda g: g * 0)
    np.testing.assert_array_equal(jax.grad(loss)(params)["bias"], 0)


def test_a_hook_that_runs_after_accumulation_is_refused_where_it_would_run() -> None:
    module = torch.nn.Linear(3, 2)
    module.weight.register_post_accumulate_grad_hook(lambda p: None)
    apply, params = calque.functional(module)
    assert apply(params, jnp.ones((4, 3))).shape == (4, 2)
    with pytest.raises(calque.TraceError, match="'weight' has a hook that runs after"):
        jax.grad(lambda p: apply(p, jnp.ones((4, 3))).sum())(params)


def _with_a_hook(kind: str) -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    if kind == "parameter":
        module.get_parameter("0.weight").register_hook(lambda g: 2 * g)
    else:
        module.get_submodule("1").register_full_backward_hook(lambda m, i, o: (2 * i[0],))
    return module


@pytest.mark.parametrize("kind", ["parameter", "module"])
def test_hooks_that_jax_would_leave_out_are_refused(kind: str) -> None:
    apply, params = calque.functional(_with_a_hook(kind), gradient="jax")
    x = jnp.ones((2, 3))
    assert jax.jit(apply)(params, x).shape == (2, 2)
    with pytest.raises(calque.TraceError, match="has a backward hook"):
        jax.grad(lambda p: apply(p, x).sum())(params)
