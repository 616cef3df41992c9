"""A jitted step holds each of its arrays once."""

import gc

import jax
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import calque

WIDTH = 137  # a width that no other test uses


@pytest.mark.parametrize(
    ("optimizer", "copies"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 1),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 2),
        (lambda p: torch.optim.AdamW(p), 3),
    ],
)
def test_parameters_and_optimizer_state_are_held_once(optimizer, copies):
    model = nn.Linear(WIDTH, 10).to("jax")
    opt = optimizer(model.parameters())

    @calque.jit
    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    x, y = torch.randn(4, WIDTH).to("jax"), torch.tensor([1, 2, 3, 4]).to("jax")
    for _ in range(3):
        step(x, y)
    gc.collect()
    held = [a for a in jax.live_arrays() if a.shape == (10, WIDTH)]
    assert len(held) == copies
