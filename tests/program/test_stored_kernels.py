"""Kernels that a program is given turned are those that the parameters hold at the call."""

import copy

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import calque
from calque.program import stored_kernels
from calque.program.compiler_options import options_of
from calque.program.stored_kernels import TransposedGathering


def _net() -> nn.Module:
    torch.manual_seed(0)
    first = nn.Conv2d(32, 64, 5, padding=2)
    return nn.Sequential(first, nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.Flatten())


def test_every_way_to_change_a_kernel_is_seen() -> None:
    model, x = _net().eval(), torch.randn(1, 32, 20, 20)
    twin, ours = copy.deepcopy(model).to("jax"), x.to("jax")
    jitted = calque.jit(twin)
    optimizers = [torch.optim.SGD(one.parameters(), lr=1e-3) for one in (model, twin)]

    def train() -> None:
        for one, optimizer, images in zip((model, twin), optimizers, (x, ours), strict=True):
            one(images).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    def assign() -> None:
        values = torch.randn_like(model[0].weight) / 50
        for one in (model, twin):
            with torch.no_grad():
                one[0].weight.copy_(values)
                one[2].weight.data = one[2].weight.data * 2

    def load() -> None:
        state = _net().state_dict()
        model.load_state_dict(state), twin.load_state_dict(state)

    for change in (lambda: None, train, assign, load, lambda: None):
        change()
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(jitted(ours).cpu(), model(x), rtol=1e-3, atol=1e-3)


def test_a_kernel_is_turned_once_while_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    turned = []
    transpose = stored_kernels._transpose
    monkeypatch.setattr(stored_kernels, "_transpose", lambda *a: turned.append(a) or transpose(*a))
    kernel = [jnp.ones((2, 3)), jnp.arange(6.0).reshape(2, 3)]
    gather = TransposedGathering(lambda _: list(kernel), {1: (1, 0)})
    for _ in range(3):
        first, second = gather(None)
        assert first is kernel[0]
        np.testing.assert_array_equal(second, kernel[1].T)
    assert len(turned) == 1
    kernel[1] = kernel[1] + 1
    np.testing.assert_array_equal(gather(None)[1], kernel[1].T)
    assert len(turned) == 2


def test_only_programs_that_convolve_and_change_nothing_have_options() -> None:
    import jax
    from jax import lax

    x = jnp.ones((1, 2, 5, 5))
    convolves = jax.make_jaxpr(jax.jit(lambda x: lax.conv(x, x, (1, 1), "SAME")))(x).jaxpr
    assert options_of(convolves, True) and not options_of(convolves, False)
    assert not options_of(jax.make_jaxpr(jnp.cos)(x).jaxpr, True)
