"""Optimizers that are not PyTorch's, in a jitted step."""

import math
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


class _Computing(Optimizer):
    """Computes the step's size from its rate, its count, and a count that is a tensor."""

    def __init__(self, params: Any, size: Callable[[float, int, torch.Tensor], float]) -> None:
        super().__init__(params, {"lr": 0.1, "count": 0})
        self.size = size

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            group["count"] += 1
            for p in group["params"]:
                seen = self.state[p].setdefault("seen", torch.tensor(2**53 + 1, device=p.device))
                seen.add_(1)
                p.sub_(p.grad, alpha=self.size(group["lr"], group["count"], seen))


def _sized(
    size: Callable[..., float], device: str, before: bool = False, calls: int = 4
) -> tuple[list[float], int]:
    w = nn.Parameter(torch.ones(3, device=device))
    optimizer = _Computing([w], size)

    def step(x: torch.Tensor) -> None:
        if before:
            size(0.5, 1, torch.zeros(()))
        (w * x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    run: Any = calque.jit(step) if device == "jax" else step
    for call in range(calls):
        optimizer.param_groups[0]["lr"] = 0.1 / (call + 1.5)
        run(torch.arange(3.0, device=device))
    return w.tolist(), len(run.history) if device == "jax" else 0


_SIZES: dict[str, Callable[[float, int, torch.Tensor], float]] = {
    "logarithms": lambda lr, n, seen: (
        lr / (1 + math.log(n, 2)) + lr * math.floor(math.log(5**n, 5))
    ),
    "rounding": lambda lr, n, seen: lr * (round(n / 2) + divmod(n, 3)[1] + round(n, 2)) / 4,
    "questions": lambda lr, n, seen: lr * math.isfinite(lr),
    "kinds of tensors' values": lambda lr, n, seen: lr if isinstance(seen.item(), int) else 1.0,
    "extrema of tensors' values": lambda lr, n, seen: (
        lr / max(2, seen.item() - 2**53) * min(seen.item(), 3, n) + max(lr, max([n, 0.1])) / n
    ),
    "values beyond 2**53": lambda lr, n, seen: lr * (seen.item() % 3),
}


@pytest.mark.parametrize("size", _SIZES.values(), ids=list(_SIZES))
def test_what_a_step_computes_of_its_numbers_is_part_of_one_program(size: Any) -> None:
    expected, _ = _sized(size, "cpu")
    found, traces = _sized(size, "jax")
    torch.testing.assert_close(found, expected)
    assert traces == 2  # the first call creates the state


def _by_type(lr: float, n: int, seen: torch.Tensor) -> float:
    return lr if type(lr) is float else 1.0


@pytest.mark.parametrize("before", [False, True], ids=["in the step only", "before it, too"])
def test_a_function_that_a_step_calls_asks_for_the_type_of_its_rate(before: bool) -> None:
    expected, _ = _sized(_by_type, "cpu", before, 2)
    torch.testing.assert_close(_sized(_by_type, "jax", before, 2)[0], expected)


@pytest.mark.parametrize(
    "size",
    [
        lambda lr, n, seen: lr if type(seen.item()) is int else 1.0,
        lambda lr, n, seen: lr * (seen.item() & 1),
        lambda lr, n, seen: lr * seen.item().bit_length(),
    ],
    ids=["type", "bits", "method"],
)
def test_a_tensors_value_that_a_step_needs_itself_is_refused(size: Any) -> None:
    with pytest.raises(calque.TraceError, match="test_optimizers_of_others.py"):
        _sized(size, "jax", calls=1)
