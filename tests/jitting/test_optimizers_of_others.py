"""Optimizers that are not PyTorch's, in a jitted step."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import calque


class _Averaging(Optimizer):
    """Assigns numbers of its param groups, in its step, as schedule-free optimizers do."""

    def __init__(self, params: Any, lr: float = 0.1, power: float = 2.0) -> None:
        defaults = {"lr": lr, "power": power, "count": 0, "total": 0.0, "largest": -1.0}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            weight = self._weight(group)
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.detach().clone())
                p.lerp_(z, weight)
                p.sub_(p.grad, alpha=group["lr"] * (1 - 0.5 * weight))
                z.sub_(p.grad, alpha=group["lr"])
            group["count"] += 1

    def _weight(self, group: dict[str, Any]) -> float:
        largest = group["largest"] = max(group["lr"], group["largest"])
        weight = largest ** group["power"]
        group["total"] = group["total"] + weight
        return weight / group["total"]


class _Hidden(_Averaging):
    """Assigns them where its code does not show it."""

    def _weight(self, group: dict[str, Any]) -> float:
        group.update(total=group["total"] + group["lr"])
        return group["lr"]


class _Around(Optimizer):
    """Holds another optimizer, and leaves out `Optimizer.__init__`, as some Lookaheads do."""

    def __init__(self, params: Any) -> None:  # pyright: ignore[reportMissingSuperCall]
        self._optimizer_step_pre_hooks = {}
        self._optimizer_step_post_hooks = {}
        self.optimizer = torch.optim.Adam(params, lr=0.1)
        self.state = self.optimizer.state
        self.param_groups = self.optimizer.param_groups

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


def _trained(kind: Callable[..., Optimizer], device: str, steps: int = 4) -> list[Any]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double().to(device)
    optimizer = kind(model.parameters())
    x = torch.ones(2, 3, dtype=torch.float64, device=device)

    def step() -> None:
        optimizer.zero_grad()
        (model(x) - 3).square().mean().backward()
        optimizer.step()

    run = calque.jit(step) if device == "jax" else step
    found: list[Any] = []
    for _ in range(steps):
        run()
        group = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
        found.append((model.weight.tolist(), group))
    return found


@pytest.mark.parametrize("kind", [_Averaging, _Hidden, _Around])
def test_steps_of_others(kind: Callable[..., Optimizer]) -> None:
    for (got, state), (want, expected) in zip(
        _trained(kind, "jax"), _trained(kind, "cpu"), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=0)
        assert state == expected
