"""Hyper-parameters that are assigned while an optimizer steps: by its hooks, or by its own code."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import calque


class Halving(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= 0.5
        return super().step(closure)


def halve(optimizer, args, kwargs):
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * 0.5


@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")
@pytest.mark.parametrize("by", ["pre-hook", "post-hook", "step"])
def test_a_rate_that_the_step_assigns_is_assigned_at_each_call(by):
    weights = [torch.ones(2, device=device, requires_grad=True) for device in ("cpu", "jax")]
    kind = Halving if by == "step" else torch.optim.SGD
    optimizers = [kind([w], lr=0.5) for w in weights]
    for optimizer in optimizers:
        if by == "pre-hook":
            optimizer.register_step_pre_hook(halve)
        elif by == "post-hook":
            optimizer.register_step_post_hook(halve)

    def steps(weight, optimizer):
        def step():
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()

        return step

    eager, jitted = (steps(*pair) for pair in zip(weights, optimizers))
    jitted = calque.jit(jitted)
    for _ in range(3):
        eager(), jitted()
        rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
        assert rates[0] == rates[1]
        torch.testing.assert_close(weights[0], weights[1].cpu())


@pytest.mark.parametrize(
    ("kind", "key"), [(torch.optim.AdamW, "lr"), (torch.optim.AdamW, "betas"), (Halving, "lr")]
)
@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_of_numpy_are_numbers(kind: Any, key: str, dtype: Any) -> None:
    schedule = np.linspace(0.5, 0.1, 4).astype(dtype)
    found = []
    for device in ("cpu", "jax"):
        weight = torch.ones(2, device=device, requires_grad=True)
        optimizer = kind([weight], lr=0.5)

        def step(weight: torch.Tensor = weight, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()

        jitted = calque.jit(step)
        run = jitted if device == "jax" else step
        for rate in schedule:
            optimizer.param_groups[0][key] = rate if key == "lr" else (rate, 0.999)
            run()
        now = optimizer.param_groups[0][key]
        found.append((weight.detach().cpu(), now, type(now)))
        if device == "jax" and kind is torch.optim.AdamW:
            assert len(jitted.history) <= 2
    torch.testing.assert_close(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


def _values(optimizer: torch.optim.Optimizer) -> float:
    return sum(v for v in optimizer.param_groups[0].values() if type(v) is float)


def _copied(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}


def _by_a_key(optimizer: torch.optim.Optimizer) -> float:
    return optimizer.param_groups[0]["lr"[:2]]


def _told(optimizer: torch.optim.Optimizer) -> Any:
    return optimizer.state_dict()["param_groups"]


@pytest.mark.parametrize("read", [_values, _copied, _by_a_key, _told, repr])
def test_numbers_that_are_read_outside_of_the_step(read: Any) -> None:
    weight = nn.Parameter(torch.ones(2, device="jax"))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step() -> Any:
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        return read(optimizer)

    jitted = calque.jit(step, verify=False)
    for rate in (0.1, 0.1, 0.05, 0.025):
        optimizer.param_groups[0].update(lr=rate)
        assert jitted() == read(optimizer)


def _accumulating(read: Any) -> tuple[Any, Any, torch.optim.Optimizer]:
    weight = nn.Parameter(torch.ones(2, device="jax"))
    optimizer = torch.optim.AdamW([weight], lr=0.1)

    def step(x: torch.Tensor, last: bool) -> Any:
        (weight * x).sum().backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return read(optimizer)

    return step, calque.jit(step, verify=False), optimizer


def test_an_optimizer_that_does_not_step_has_any_rate() -> None:
    _, jitted, optimizer = _accumulating(lambda optimizer: None)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for turn in range(10):
        jitted(torch.ones(2, device="jax"), turn % 2 == 1)
        if turn % 2:
            schedule.step()
    assert len(jitted.history) <= 3, jitted.history


def _by_its_name(optimizer: torch.optim.Optimizer) -> float:
    return optimizer.param_groups[0]["lr"]


def _by_getattr(optimizer: torch.optim.Optimizer) -> float:
    return sum(v for v in getattr(optimizer, "param" + "_groups")[0].values() if type(v) is float)


@pytest.mark.parametrize("read", [_by_its_name, _by_getattr, _values, _by_a_key, _told, repr])
def test_numbers_that_are_read_though_the_optimizer_does_not_step(read: Any) -> None:
    _, jitted, optimizer = _accumulating(read)
    for rate in (0.1, 0.1, 0.05, 0.025):
        optimizer.param_groups[0].update(lr=rate)
        assert jitted(torch.ones(2, device="jax"), False) == read(optimizer)


def assign(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")
def test_a_rate_that_another_function_assigns_after_the_step():
    outcomes = []
    for device in ("cpu", "jax"):
        weight = torch.ones(2, device=device, requires_grad=True)
        optimizer = torch.optim.Adam([weight], lr=0.1)
        count = [0]

        def step(weight=weight, optimizer=optimizer, count=count):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
            count[0] += 1
            assign(optimizer, 0.1 * 0.5 ** (count[0] // 2))

        run = calque.jit(step) if device == "jax" else step
        rates = []
        for _ in range(4):
            run()
            rates.append(optimizer.param_groups[0]["lr"])
        outcomes.append((rates, weight.detach().cpu()))
    torch.testing.assert_close(outcomes[1], outcomes[0])
