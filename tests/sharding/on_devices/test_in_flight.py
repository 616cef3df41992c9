"""Programs over several CPU devices do not wait for each other."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
import torch

import calque
from calque import sharding as sh
from calque.device.runtime.in_flight import communicates
from calque.device.runtime.placement import everywhere
from calque.sharding import P


def test_hundreds_of_programs_end_without_a_look_at_their_results() -> None:
    sh.mesh(dp=8)
    x = sh.shard(torch.arange(64.0).reshape(8, 8), P("dp"))
    step = calque.jit(lambda y: (y + y.sum(0)) / 9)
    y = z = x
    for _ in range(700):  # without a limit, XLA ends the process after a few hundred
        y = step(y)
        z = (z + z.sum(0)) / 9
        z.view(-1)[3:9].add_(0)
    assert torch.allclose(y.sum().cpu(), x.sum().cpu())
    assert torch.allclose(z.sum().cpu(), x.sum().cpu())


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda y: torch.sort(y, 0)[0], id="several results"),
        pytest.param(lambda y: torch.relu(y) / (1 + y.sum(0)), id="with and without"),
        pytest.param(calque.from_jax(lambda a: a / a.sum(0)), id="a JAX function"),
    ],
)
def test_hundreds_of_operators_do(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    sh.mesh(dp=8)
    x = torch.arange(64.0).reshape(8, 8).flip(0) / 64
    spread = sh.shard(x, P("dp"))
    for _ in range(700):
        spread = function(spread)
    assert spread.isfinite().all()
    assert sh.placement(spread) is not None


def test_hundreds_of_backwards_of_programs_do() -> None:
    sh.mesh(dp=8)
    x = sh.shard(torch.ones(8, 8), P("dp"))
    weight = sh.shard(torch.ones(8, 8), P("dp")).requires_grad_()
    program = calque.jit(lambda x: (x @ weight).square().sum())
    for _ in range(400):
        program(x).backward()
    assert weight.grad is not None
    assert weight.grad.sum().item() == 400 * 8 * 64 * 2 * 8


def test_only_programs_that_exchange_values_are_waited_for() -> None:
    sh.mesh(dp=8)
    x = calque.to_jax(sh.shard(torch.ones(8, 8), P("dp")))
    rows = x.sharding
    pinned = jax.lax.with_sharding_constraint
    kinds: dict[str, Callable[[jax.Array], jax.Array]] = {
        "add": lambda x: x + x,
        "sum": lambda x: x.sum(),
        "roll": lambda x: jnp.roll(x, 1, 0),
        "transpose": lambda x: pinned(x.T, rows),
        "gather": lambda x: pinned(x, everywhere(rows)),
    }
    found = {n: communicates(jax.jit(f).lower(x).compile()) for n, f in kinds.items()}
    assert found == {"add": False, "sum": True, "roll": True, "transpose": True, "gather": True}
