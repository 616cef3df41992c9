"""Learning rates that are tensors, and numbers of param groups met by CPU tensors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import calque
from calque.jitting.numbers import SteppedNumbers


def losses(kind: type, device: str, rate_on: str, jit: bool) -> list[float]:
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 2), torch.randn(16, 4), torch.randint(0, 2, (16,))
    model.to(device)
    rate = torch.tensor(1e-2, device=rate_on)
    optimizer = kind(model.parameters(), lr=rate)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run: Callable[..., torch.Tensor] = calque.jit(step) if jit else step
    found = []
    for turn in range(4):
        found.append(run(x.to(device), y.to(device)).item())
        if turn == 1:
            rate.mul_(10)  # as a scheduler does
    return found


@pytest.mark.sampled(6)
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("rate_on", ["cpu", "jax"])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])
def test_a_learning_rate_may_be_a_tensor(kind: type, rate_on: str, jit: bool) -> None:
    expected = losses(kind, "cpu", "cpu", jit=False)
    assert losses(kind, "jax", rate_on, jit) == pytest.approx(expected, rel=1e-4)


class Scaling(torch.optim.Optimizer):
    """Multiplies the parameters by what a function makes of its param group."""

    def __init__(self, parameters: Any, factor: Callable[[dict[str, Any]], torch.Tensor]) -> None:
        super().__init__(parameters, {"wd": 0.5})
        self.factor = factor

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            p.mul_(self.factor(self.param_groups[0]).to("jax"))


def scaled(factor: Callable[[dict[str, Any]], torch.Tensor], jit: bool) -> torch.Tensor:
    weight = nn.Parameter(torch.ones(2, 2, device="jax"))
    optimizer = Scaling([weight], factor)
    step = calque.jit(optimizer.step) if jit else optimizer.step
    for wd in (0.5, 0.25, 3.0):
        optimizer.param_groups[0]["wd"] = wd
        step()
    return weight.detach()


COMPUTED = [
    lambda group: torch.tensor(2.0) * group["wd"],
    lambda group: torch.ones(2, 2).add(torch.ones(2, 2), alpha=group["wd"]),
    lambda group: torch.pow(group["wd"], torch.tensor(2.0)),
    lambda group: torch.ones(2, 2).clamp(max=group["wd"]),
    lambda group: torch._foreach_mul([torch.ones(2, 2)], group["wd"])[0],
]


@pytest.mark.parametrize("factor", COMPUTED)
def test_a_cpu_tensor_meets_a_number_of_the_program(factor: Any) -> None:
    assert torch.equal(scaled(factor, jit=True), scaled(factor, jit=False))


ON_THE_CPU = [
    lambda group: torch.full((), group["wd"]),
    lambda group: torch.ones(2, 2).mul_(group["wd"]),
    lambda group: torch.linspace(0, group["wd"], 2),
]


@pytest.mark.parametrize("factor", ON_THE_CPU)
def test_a_kernel_of_the_cpu_computes_with_the_number_itself(factor: Any) -> None:
    assert torch.equal(scaled(factor, jit=True), scaled(factor, jit=False))


def test_numbers_of_a_group_come_in_its_order(monkeypatch):
    """Whatever the order of a set of their names: a process finds the program of another one."""
    keys = SteppedNumbers.traced_keys
    texts = []
    for turn in (sorted, lambda names: sorted(names, reverse=True)):
        monkeypatch.setattr(
            SteppedNumbers, "traced_keys", lambda *given, turn=turn: turn(keys(*given))
        )
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 2).to("jax")
        optimizer = torch.optim.AdamW(model.parameters())

        def step(x, model=model, optimizer=optimizer):
            model(x).sum().backward()
            optimizer.step()

        texts.append(calque.jit(step).lower(torch.ones(1, 2, device="jax")).as_text())
    assert texts[0] == texts[1]
