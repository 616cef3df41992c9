"""Optimizers that count their steps in Python: one program serves all counts."""

import copy
import math
from collections.abc import Callable
from math import sqrt as root
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import calque

Step = Callable[[Any, dict[str, Any], torch.Tensor, dict[str, Any]], None]


class TextbookAdam(Optimizer):
    """Counts in the state of each parameter, and takes roots of Python numbers."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(p), square=torch.zeros_like(p))
                state["step"] += 1
                state["mean"].lerp_(p.grad, 1 - first)
                state["square"].mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
                scale = math.sqrt(1 - second ** state["step"])
                below = (state["square"].sqrt() / scale).add_(1e-8)
                p.addcdiv_(state["mean"], below, value=-group["lr"] / (1 - first ** state["step"]))


class Stepping(Optimizer):
    """Does to each parameter what a function says."""

    def __init__(self, params: Any, function: Step) -> None:
        super().__init__(params, {"lr": 0.1, "count": 0, "total": 0.0})
        self.function = function
        self.seen: list[Any] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            group["count"] += 1
            for p in group["params"]:
                self.function(self, group, p, self.state[p])


def parts_of(optimizer: Optimizer) -> Any:
    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, torch.Tensor) else value

    states = [
        {k: plain(v) for k, v in s.items()} if isinstance(s, dict) else plain(s)
        for s in optimizer.state.values()
    ]
    groups = [{k: plain(v) for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    return states, groups, list(getattr(optimizer, "seen", ()))


def trained(
    make: Callable[[Any], Optimizer],
    device: str,
    between: Callable[[int, nn.Module, Optimizer], None] = lambda i, m, o: None,
    steps: int = 6,
) -> tuple[list[Any], Any]:
    """What is there after each step, and the function."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double().to(device)
    optimizer = make(model.parameters())
    x = torch.ones(2, 3, dtype=torch.float64, device=device)

    def step() -> None:
        optimizer.zero_grad()
        (model(x) - 3).square().mean().backward()
        optimizer.step()

    run = calque.jit(step) if device == "jax" else step
    found = []
    for i in range(steps):
        between(i, model, optimizer)
        run()
        found.append((model.weight.tolist(), parts_of(optimizer)))
    return found, run


def _rounded_off(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _rounded_off(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_rounded_off, value))
    return round(value, 9) if type(value) is float else (type(value), value)


def check(make: Callable[[Any], Optimizer], programs: int | None, **options: Any) -> None:
    """Compare with the CPU; `programs` are compiled at most."""
    expected, _ = trained(make, "cpu", **options)
    found, run = trained(make, "jax", **options)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got[0], want[0], rtol=1e-9, atol=1e-12)
        assert _rounded_off(got[1]) == _rounded_off(want[1])
    if programs is not None:
        assert run.compilations <= programs, run.history


def test_one_program_serves_all_counts() -> None:
    check(TextbookAdam, 2)


def test_the_rate_is_an_input_still() -> None:
    def schedule(i: int, model: nn.Module, optimizer: Optimizer) -> None:
        optimizer.param_groups[0]["lr"] *= 0.9

    check(TextbookAdam, 2, between=schedule)


def test_counts_that_the_loop_sets() -> None:
    def reset(i: int, model: nn.Module, optimizer: Optimizer) -> None:
        if i == 3:
            for state in optimizer.state.values():
                state["step"] = 0
        if i == 5:
            optimizer.state[next(model.parameters())]["step"] = 40  # differs from the other steps

    check(TextbookAdam, 3, between=reset, steps=8)


def test_counts_of_a_state_that_is_loaded() -> None:
    kept: dict[str, Any] = {}

    def load(i: int, model: nn.Module, optimizer: Optimizer) -> None:
        if i == 2:
            kept[str(id(model))] = copy.deepcopy(optimizer.state_dict())
        if i == 4:
            optimizer.load_state_dict(kept[str(id(model))])

    check(TextbookAdam, 3, between=load)


def test_parameters_that_are_frozen_for_a_while() -> None:
    def freeze(i: int, model: nn.Module, optimizer: Optimizer) -> None:
        bias = model.get_parameter("bias")
        bias.requires_grad_(i not in (2, 3))
        bias.grad = None

    check(TextbookAdam, 4, between=freeze)


def _every_third(self: Any, group: Any, p: Any, state: Any) -> None:
    p.sub_(p.grad, alpha=group["lr"] if group["count"] % 3 == 0 else group["lr"] / 2)


def _warm_up(self: Any, group: Any, p: Any, state: Any) -> None:
    group["total"] += group["lr"] * min(1.0, group["count"] / 4)
    p.sub_(p.grad, alpha=group["total"] / group["count"] * (-1) ** group["count"])


def _roots(self: Any, group: Any, p: Any, state: Any) -> None:
    p.sub_(p.grad, alpha=root(group["lr"]) / np.sqrt(group["count"]) + math.log(group["count"]))


def _tensors(self: Any, group: Any, p: Any, state: Any) -> None:
    numbers = [group["lr"], group["lr"] / group["count"]]
    p.sub_(p.grad * torch.tensor(numbers, dtype=p.dtype, device=p.device).sum())


def _caught(self: Any, group: Any, p: Any, state: Any) -> None:
    try:
        rate = 1 / (group["count"] - 3)
    except ZeroDivisionError:
        rate = 0.25
    p.sub_(p.grad, alpha=rate)


def _of_a_kind(self: Any, group: Any, p: Any, state: Any) -> None:
    assert isinstance(group["count"], int) and isinstance(group["lr"], float)
    p.sub_(p.grad, alpha=group["lr"] / group["count"])


@pytest.mark.parametrize(
    ("function", "programs"),
    [(_every_third, 3), (_warm_up, 3), (_roots, 2), (_tensors, 2), (_caught, 4), (_of_a_kind, 2)],
)
def test_numbers_that_a_step_computes_with(function: Step, programs: int) -> None:
    check(lambda params: Stepping(params, function), programs)


def _kept(self: Any, group: Any, p: Any, state: Any) -> None:
    self.seen.append((group["lr"], group["count"] * 2))


def _told(self: Any, group: Any, p: Any, state: Any) -> None:
    self.seen.append(f"{group['lr']}")


def _key(self: Any, group: Any, p: Any, state: Any) -> None:
    self.seen.append({0.1: "first", 0.2: "second"}.get(group["lr"]))


def _closed_over(self: Any, group: Any, p: Any, state: Any) -> None:
    def rate(lr: float = group["lr"]) -> float:
        return lr

    self.seen[:] = [rate()]


def _rounded(self: Any, group: Any, p: Any, state: Any) -> None:
    state["rate"] = (round(group["lr"], 1), int(10 * group["lr"]), float(group["lr"]))


def _whole(self: Any, group: Any, p: Any, state: Any) -> None:
    state["whole"] = torch.arange(3, device=p.device) * group["count"]


def _a_place(self: Any, group: Any, p: Any, state: Any) -> None:
    state.setdefault("norms", torch.zeros(3, device=p.device))[group["count"] % 3] = p.grad.norm()


def _asked_for_its_type(self: Any, group: Any, p: Any, state: Any) -> None:
    p.sub_(p.grad, alpha=group["lr"] if type(group["count"]) is int else 1.0)


def _named_by_its_type(self: Any, group: Any, p: Any, state: Any) -> None:
    state["kind"] = type(group["lr"]).__name__ + type(self).__name__


def _asserted(self: Any, group: Any, p: Any, state: Any) -> None:
    kinds = {float: "rate"}
    assert type(group["lr"]) in kinds
    p.sub_(p.grad, alpha=group["lr"])


def _by_hash(self: Any, group: Any, p: Any, state: Any) -> None:
    p.sub_(p.grad, alpha=(group["count"] * 6364136223846793005 + 1) % 2**64 % 97 / 97)


def _larger_than_floats(self: Any, group: Any, p: Any, state: Any) -> None:
    state["square"] = state.get("square", 12345) ** 2
    p.sub_(p.grad, alpha=state["square"] % 7)


def _beyond_floats(self: Any, group: Any, p: Any, state: Any) -> None:
    try:
        state["rate"] = math.exp(236 * group["count"]) + 9.0 ** (150 * group["count"])
    except OverflowError:
        state["rate"] = 0.5
    p.sub_(p.grad, alpha=1 / (1 + state["rate"]))


@pytest.mark.parametrize(
    "function",
    [
        *(_kept, _told, _key, _closed_over, _rounded, _whole, _a_place, _asked_for_its_type),
        _named_by_its_type,
        *(_asserted, _by_hash, _larger_than_floats, _beyond_floats),
    ],
)
def test_numbers_that_have_to_be_themselves(function: Step) -> None:
    def schedule(i: int, model: nn.Module, optimizer: Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 * (i % 2 + 1)

    check(lambda params: Stepping(params, function), None, between=schedule, steps=4)


@pytest.mark.parametrize("first", [2**53 - 2, 2**70])
def test_counts_that_floats_do_not_have(first: int) -> None:
    def count_from(i: int, model: nn.Module, optimizer: Optimizer) -> None:
        if i == 0:
            optimizer.param_groups[0]["count"] = first

    def function(self: Any, group: Any, p: Any, state: Any) -> None:
        p.sub_(p.grad, alpha=group["lr"] * (group["count"] % 7))

    check(lambda params: Stepping(params, function), None, between=count_from, steps=4)


class _WithStateOfItsOwn(Stepping):
    """Keeps in `state` what is no parameter's, a count on the CPU among it."""

    def __init__(self, params: Any) -> None:
        def function(self: Any, group: Any, p: Any, state: Any) -> None:
            self.state["calls"] += 1
            self.state["steps"].add_(1)
            p.sub_(p.grad, alpha=group["lr"] / self.state["calls"])

        super().__init__(params, function)
        self.state["calls"] = 0
        self.state["steps"] = torch.tensor([0])

    def _init_group(self, group: Any, other: str, another: int) -> None:
        raise AssertionError("nobody but PyTorch's own optimizers is asked to make its state so")


def test_state_that_is_no_parameters() -> None:
    check(_WithStateOfItsOwn, 2)


def test_math_is_as_it_was() -> None:
    before = math.sqrt, torch.tensor
    trained(TextbookAdam, "jax", steps=2)
    assert (math.sqrt, torch.tensor) == before
    assert root is math.sqrt


class _Decaying(TextbookAdam):
    """Steps as its base does, whose step has hooks of its own, and changes the rate after it."""

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().step(closure)
        for group in self.param_groups:
            group["lr"] = max(0.9 * group["lr"], 0.04)


def test_a_step_that_calls_that_of_its_base() -> None:
    trained(TextbookAdam, "cpu", steps=1)  # installs hooks on it, too
    check(_Decaying, 3, steps=7)


@pytest.mark.parametrize("what", ["truth", "complex"])
def test_values_of_tensors_that_are_no_real_numbers_are_refused(what: str) -> None:
    def function(self: Any, group: Any, p: Any, state: Any) -> None:
        read = (p.grad.norm() > 0.5) if what == "truth" else p.grad.sum() * (1 + 2j)
        value = read.item()
        p.sub_(p.grad, alpha=group["lr"] * (2.0 if value else 1.0))

    with pytest.raises(calque.TraceError, match="in function: a tensor .* is read as a Python num"):
        trained(lambda params: Stepping(params, function), "jax", steps=1)
