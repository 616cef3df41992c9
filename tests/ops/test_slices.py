"""Gradients of slices: right, and one executable for all starts."""

import pytest
import torch

import calque  # noqa: F401  (registers the device)
from tests import new_process


def _gradient(x, take):
    x = x.detach().requires_grad_()
    y = take(x)
    y.backward(torch.arange(1.0, y.numel() + 1, device=y.device).view(y.shape))
    return x.grad


CASES = [
    lambda x: x[2:5],
    lambda x: x[-3:],
    lambda x: x[-30:4],
    lambda x: x[1::3],
    lambda x: x[:, 1:-1:2],
    lambda x: x[4:4],
    lambda x: x[3],
    lambda x: x[:, -2],
    lambda x: x[9:],
]


@pytest.mark.parametrize("take", CASES)
def test_gradients(take):
    x = torch.randn(9, 5)
    torch.testing.assert_close(_gradient(x.to("jax"), take).cpu(), _gradient(x, take))


STARTS = """
import jax, torch, calque

def gradient(x, take):
    x = x.detach().requires_grad_()
    y = take(x)
    y.backward(torch.arange(1.0, y.numel() + 1, device=y.device).view(y.shape))

compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, *_, **details: compiled.append((name, details)) if "compile" in name else None
)
x = torch.randn(11, 4, device="jax")
for take in (lambda x, i: x[i : i + 3], lambda x, i: x[i]):
    gradient(x, lambda x: take(x, 0))
    compiled.clear()
    for start in (1, 3, 7, 8):
        gradient(x, lambda x: take(x, start))
    assert not compiled, compiled
    gradient(x[:, 1:], lambda x: take(x, 2))
    assert compiled
"""
"""Runs in a process that has compiled nothing else, and has no other threads."""


def test_a_new_start_compiles_nothing():
    new_process.check(STARTS)
