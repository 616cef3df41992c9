"""Gradients that PyTorch computes from comparisons with extrema go where they go eagerly."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import calque

INF = float("inf")


def inputs():
    torch.manual_seed(0)
    return torch.randn(63, 8), torch.randn(8)


def numbers(x, w):
    """Numbers that XLA computes again wherever they are needed."""
    h = F.silu(x * w)
    return h[:20, None] + h[None, :20]


def scattered(t):
    index = torch.arange(20, device=t.device) % 5
    return torch.zeros(5, 8, device=t.device).index_reduce(0, index, t[:, 0], "amax")


def kept(t):
    best = t.topk(3, 0).values
    return torch.where(t < best[-1:], torch.zeros_like(t), t * t)


OF = {
    "amax": lambda t: t.amax(0),
    "amin": lambda t: t.amin((0, 2)),
    "median": lambda t: t.median(),
    "aminmax": lambda t: sum(torch.aminmax(t, dim=0)),
    "norm": lambda t: torch.linalg.vector_norm(t, INF, dim=1),
    "cdist": lambda t: torch.cdist(t[:5, 0], t[5:9, 0] * 1.3, p=INF),
    "pdist": lambda t: F.pdist(t[:, 0], p=INF),
    "index_reduce": scattered,
    "after relu": lambda t: t.relu().amax(0),
    "after max pooling": lambda t: F.max_pool2d(t, 2).amax(0),
    "half": lambda t: t.bfloat16().amax(0).float(),
    "subtracted": lambda t: (t - t.amax(0, keepdim=True)).exp(),
    "compared by the program": lambda t: t * (t == t.amax(0, keepdim=True)),
    "compared with a part": lambda t: t * (t == t[0]),
    "kept by top k": kept,
}


def gradient(of, run, x, w):
    x = x.detach().requires_grad_()
    run(lambda x, w: of(numbers(x, w)).sum())(x, w).backward()
    return x.grad


def whole(of):
    return lambda x, w: gradient(of, lambda f: f, x, w)


@pytest.mark.parametrize("name", OF)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_under_jit(name):
    x, w = inputs()
    expected = gradient(OF[name], lambda f: f, x, w)
    x, w = x.to("jax"), w.to("jax")
    torch.testing.assert_close(
        calque.jit(whole(OF[name]))(x, w).cpu(), expected, atol=1e-3, rtol=1e-4
    )
    backward_outside = gradient(OF[name], calque.jit, x, w).cpu()
    torch.testing.assert_close(backward_outside, expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("name", ["amax", "median", "norm", "cdist", "after relu", "subtracted"])
def test_compiled(name):
    x, w = inputs()
    expected = gradient(OF[name], lambda f: f, x, w)
    found = gradient(
        OF[name], lambda f: torch.compile(f, backend="calque"), x.to("jax"), w.to("jax")
    )
    torch.testing.assert_close(found.cpu(), expected, atol=1e-3, rtol=1e-4)


def trained(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.SiLU()).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(40, 8).to(device)
    index = torch.arange(40, device=device) % 7

    def step(x):
        optimizer.zero_grad()
        pooled = torch.zeros(7, 16, device=device).index_reduce(0, index, model(x), "amax")
        loss = (pooled - pooled.amin(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    run = calque.jit(step) if device == "jax" else step
    return [run(x).item() for _ in range(5)]


@pytest.mark.filterwarnings("ignore:index_reduce")
def test_a_network_that_pools_maxima_is_trained_alike():
    assert trained("jax") == pytest.approx(trained("cpu"), rel=1e-3)
