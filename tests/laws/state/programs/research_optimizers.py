"""Ordinary training code: optimizers of one's own, schedules, averages of weights."""

import copy
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("research", "jit rows")
Seen = Iterator[Any]


def _net(case: Case) -> nn.Module:
    return case.on(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))


def _training(case: Case, m: nn.Module, opt: Any, steps: int = 4) -> Seen:
    def step(x):
        loss = m(x).square().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    step = case.fn(step)
    for i in range(steps):
        yield step(case.x + i), m


class _PlainSGD(torch.optim.Optimizer):
    """Reads everything from its groups."""

    def __init__(self, params, lr=0.1, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for own in self.param_groups:
            for p in own["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].mul_(own["momentum"]).add_(p.grad)
                p.add_(state["momentum"], alpha=-own["lr"])


@program(states=2)
def optimizer_of_ones_own(case: Case) -> Seen:
    m = _net(case)
    yield from _training(case, m, _PlainSGD(m.parameters()))


@program(states=2)
def learning_rate_of_an_optimizer_of_ones_own(case: Case) -> Seen:
    m = _net(case)
    opt = _PlainSGD(m.parameters())

    def step(x):
        opt.zero_grad()
        m(x).square().sum().backward()
        opt.step()

    step = case.fn(step)
    for lr in (0.1, 0.1, 0.05, 0.025, 0.1):
        for group_ in opt.param_groups:
            group_["lr"] = lr
        step(case.x)
        yield m, opt.param_groups[0]["lr"]


@program(states=2)
def optimizer_that_counts_its_steps(case: Case) -> Seen:
    class Corrected(torch.optim.Optimizer):
        def __init__(self, params, lr=0.01):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for own in self.param_groups:
                for p in own["params"]:
                    state = self.state[p]
                    state["n"] = state.get("n", 0) + 1
                    p.add_(p.grad, alpha=-own["lr"] / (1 - 0.9 ** state["n"]))

    m = _net(case)
    opt = Corrected(m.parameters())
    for seen in _training(case, m, opt):
        yield seen, [state["n"] for state in opt.state.values()]


@program(each_call=True)
def lion_with_a_global_step(case: Case) -> Seen:
    m, state = _net(case), {"step": 0}
    moments = {name: torch.zeros_like(p) for name, p in m.named_parameters()}

    def step(x):
        state["step"] += 1
        lr = 0.1 * min(1.0, state["step"] / 3)
        m(x).square().sum().backward()
        with torch.no_grad():
            for name, p in m.named_parameters():
                p.sub_(lr * (0.9 * moments[name] + 0.1 * p.grad).sign())
                moments[name].mul_(0.99).add_(p.grad, alpha=0.01)
                p.grad = None

    step = case.fn(step)
    for i in range(4):
        step(case.x + i)
        yield m, state


@program
def sgd_written_by_hand(case: Case) -> Seen:
    w, b = case.x.requires_grad_(), case.tensor(0.0, requires_grad=True)

    def step(x):
        loss = ((x * w).sum() + b - 1).square()
        grads = torch.autograd.grad(loss, (w, b))
        with torch.no_grad():
            for p, g in zip((w, b), grads, strict=True):
                p -= 0.01 * g
        return loss.detach()

    step = case.fn(step)
    for i in range(4):
        yield step(case.x + i), w, b


@program
def adam_written_by_hand_with_tensors(case: Case) -> Seen:
    w = case.x.requires_grad_()
    state = {"m": torch.zeros_like(w), "v": torch.zeros_like(w), "t": torch.zeros_like(w[0])}

    def step(x):
        (g,) = torch.autograd.grad((x * w).square().sum(), w)
        with torch.no_grad():
            state["t"] = state["t"] + 1
            state["m"] = 0.9 * state["m"] + 0.1 * g
            state["v"] = 0.99 * state["v"] + 0.01 * g * g
            bias = 1 - 0.9 ** state["t"]
            w.sub_(0.1 * state["m"] / bias / (state["v"].sqrt() + 1e-3))

    step = case.fn(step)
    for i in range(4):
        step(case.x + i)
        yield w, state["t"], list(state)


@program
def functional_parameters_in_a_dict(case: Case) -> Seen:
    params = {"w": case.x.requires_grad_(), "b": case.tensor(1.0, requires_grad=True)}

    def step(x):
        loss = ((x * params["w"]).sum() + params["b"]).square()
        grads = torch.autograd.grad(loss, list(params.values()))
        for (name, p), g in zip(list(params.items()), grads, strict=True):
            params[name] = (p - 0.01 * g).detach().requires_grad_()
        return loss.detach()

    step = case.fn(step)
    for i in range(4):
        yield step(case.x + i), params


@program
def step_schedule_outside(case: Case) -> Seen:
    m = _net(case)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=2, gamma=0.5)

    def step(x):
        opt.zero_grad()
        m(x).square().sum().backward()
        opt.step()

    step = case.fn(step)
    for i in range(5):
        step(case.x + i)
        sched.step()
        yield m, opt.param_groups[0]["lr"]


@program
def cosine_scheduler_outside(case: Case) -> Seen:
    m = _net(case)
    opt = torch.optim.AdamW(m.parameters(), lr=0.1)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=10)
    for seen in _training(case, m, opt, steps=5):
        sched.step()
        yield seen


@program
def weight_decay_and_betas_changed(case: Case) -> Seen:
    m = _net(case)
    opt = torch.optim.AdamW(m.parameters(), lr=0.1)
    for i, seen in enumerate(_training(case, m, opt, steps=4)):
        yield seen
        opt.param_groups[0]["weight_decay"] = 0.1 * (i + 1)
        opt.param_groups[0]["eps"] = 1e-3


@program(states=2)
def boolean_options_of_a_group_changed(case: Case) -> Seen:
    """With `foreach`, which is the default on every device but the CPU.

    Nesterov's momentum is then added to `.grad` itself, and else to a copy of it.
    """
    m = _net(case)
    opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, foreach=True)
    for i, seen in enumerate(_training(case, m, opt, steps=5)):
        yield seen
        opt.param_groups[0]["nesterov"] = i in (1, 2)


@program(states=3)
def group_added_to_an_optimizer(case: Case) -> Seen:
    m = _net(case)
    opt = torch.optim.SGD(m[0].parameters(), lr=0.1)
    for i, seen in enumerate(_training(case, m, opt, steps=5)):
        yield seen
        if i == 1:
            opt.add_param_group({"params": list(m[2].parameters()), "lr": 0.01})


@program
def layerwise_learning_rates(case: Case) -> Seen:
    m = _net(case)
    groups = [
        {"params": layer.parameters(), "lr": 0.1 / (i + 1), "name": f"layer{i}"}
        for i, layer in enumerate((m[0], m[2]))
    ]
    opt = torch.optim.SGD(groups, lr=0.1)
    for seen in _training(case, m, opt, steps=4):
        yield seen, [g["lr"] for g in opt.param_groups]
        opt.param_groups[0]["lr"] *= 0.5


@program(states=2)
def optimizer_state_reset_and_loaded(case: Case) -> Seen:
    m = _net(case)
    opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    kept = None
    for i, seen in enumerate(_training(case, m, opt, steps=5)):
        yield seen, opt
        if i == 1:
            kept = copy.deepcopy(opt.state_dict())
        if i == 2:
            opt.load_state_dict(kept)


@program(states=2)
def optimizer_replaced_between_phases(case: Case) -> Seen:
    m, s = _net(case), types.SimpleNamespace(opt=None)
    s.opt = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        s.opt.zero_grad()
        m(x).square().sum().backward()
        s.opt.step()

    step = case.fn(step)
    for i in range(4):
        if i == 2:
            s.opt = torch.optim.RMSprop(m.parameters(), lr=0.01)
        step(case.x + i)
        yield m, type(s.opt).__name__
