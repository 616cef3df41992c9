"""Whole training programs: on the device eagerly and in jit, against the CPU."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import calque
from tests.conformance.modelcheck import close
from tests.conformance.programs import PROGRAMS, Program, Wrap, data, network

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(300)]


def plain(function: Any) -> Any:
    return function


@pytest.mark.parametrize("wrap", [plain, calque.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("run", PROGRAMS, ids=lambda p: p.__name__)
def test_agrees_with_the_cpu(run: Program, wrap: Wrap) -> None:
    torch.manual_seed(0)
    want = run("cpu", plain)
    torch.manual_seed(0)
    jitted: list[Any] = []
    got = run("jax", lambda f: jitted.append(wrap(f)) or jitted[-1])
    assert len(got) == len(want)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        close(f"result {i}", a, b.detach(), 1e-4, 1e-5)
    for one in jitted:
        if wrap is calque.jit:
            assert one.compilations <= 2, one.history


@pytest.mark.parametrize("wrap", [plain, calque.jit], ids=["eager", "jit"])
def test_bfloat16_autocast_learns(wrap: Wrap) -> None:
    model = network("jax", 4, 16, 16, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = data("jax", 32, 4)
    y = x.sum(1, keepdim=True)

    @wrap
    def step() -> torch.Tensor:
        with torch.autocast("jax", torch.bfloat16):
            out = model(x)
            assert out.dtype == torch.bfloat16
            loss = F.mse_loss(out, y)
        loss.backward()
        assert all(p.grad.dtype == torch.float32 for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        return loss

    losses = [step().item() for _ in range(30)]
    assert losses[-1] < losses[0] / 4
