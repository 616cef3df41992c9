"""Ordinary training code: averaged weights, two optimizers, accumulation, scaling."""

import copy
import math
import types
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
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


@program
def exponential_average_of_weights(case: Case) -> Seen:
    m = _net(case)
    ema, opt = copy.deepcopy(m), torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        opt.zero_grad()
        m(x).square().sum().backward()
        opt.step()
        with torch.no_grad():
            for e, p in zip(ema.parameters(), m.parameters(), strict=True):
                e.lerp_(p, 0.1)

    step = case.fn(step)
    for i in range(4):
        step(case.x + i)
        yield m, ema


@program(states=3)
def average_whose_decay_depends_on_the_step(case: Case) -> Seen:
    m = _net(case)
    ema, s = copy.deepcopy(m), types.SimpleNamespace(step=0)

    def update(x):
        decay = min(0.99, (1 + s.step) / (3 + s.step))
        s.step = min(s.step + 1, 2)
        with torch.no_grad():
            for e, p in zip(ema.parameters(), m.parameters(), strict=True):
                p.add_(x.mean())
                e.mul_(decay).add_(p, alpha=1 - decay)

    update = case.fn(update)
    for i in range(5):
        update(case.x + i)
        yield ema, s.step


@program
def shadow_weights_in_a_dict(case: Case) -> Seen:
    m = _net(case)
    shadow = {n: p.detach().clone() for n, p in m.named_parameters()}

    def step(x):
        with torch.no_grad():
            for n, p in m.named_parameters():
                p.mul_(1 - 0.1 * x.mean())
                shadow[n] = 0.9 * shadow[n] + 0.1 * p

    step = case.fn(step)
    for i in range(4):
        step(case.x + i)
        yield m, shadow


@program(each_call=True)
def averaged_model_of_pytorch(case: Case) -> Seen:
    m = _net(case)
    swa = torch.optim.swa_utils.AveragedModel(m, device=case.device)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        opt.zero_grad()
        m(x).square().sum().backward()
        opt.step()
        swa.update_parameters(m)

    step = case.fn(step)
    for i in range(4):
        step(case.x + i)
        yield m, swa


@program(states=2)
def averaging_that_starts_later(case: Case) -> Seen:
    m, s = _net(case), types.SimpleNamespace(epoch=0, start=2)
    ema = copy.deepcopy(m)

    def step(x):
        with torch.no_grad():
            for e, p in zip(ema.parameters(), m.parameters(), strict=True):
                p.sub_(0.1 * x.mean())
                if s.epoch >= s.start:
                    e.copy_(0.5 * e + 0.5 * p)

    step = case.fn(step)
    for i in range(4):
        s.epoch = 0 if i < 2 else 5
        step(case.x + i)
        yield m, ema


@program
def two_optimizers_of_a_gan(case: Case) -> Seen:
    g, d = case.linear(3, 3), case.linear(3, 1)
    opt_g, opt_d = (torch.optim.Adam(m.parameters(), lr=0.05) for m in (g, d))

    def train_d(real, z):
        opt_d.zero_grad()
        loss = F.softplus(-d(real)).mean() + F.softplus(d(g(z).detach())).mean()
        loss.backward()
        opt_d.step()
        return loss.detach()

    def train_g(z):
        opt_g.zero_grad()
        loss = F.softplus(-d(g(z))).mean()
        loss.backward()
        opt_g.step()
        return loss.detach()

    train_d, train_g = case.fn(train_d), case.fn(train_g)
    for i in range(4):
        yield train_d(case.x + i, case.x * 0.1), train_g(case.x * 0.2), g, d


@program(states=2)
def two_optimizers_in_turn(case: Case) -> Seen:
    a, b = case.linear(3, 3), case.linear(3, 1)
    opts = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (a, b)]
    s = types.SimpleNamespace(turn=0)

    def step(x):
        opt = opts[s.turn]
        for o in opts:
            o.zero_grad()
        b(a(x)).square().sum().backward()
        opt.step()
        s.turn = (s.turn + 1) % 2

    step = case.fn(step)
    for i in range(5):
        step(case.x + i)
        yield a, b, s.turn


@program(states=3)
def critic_steps_per_generator_step(case: Case) -> Seen:
    g, d = case.linear(3, 3), case.linear(3, 1)
    og, od = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (g, d))
    counter = {"iteration": 0}

    def step(x):
        od.zero_grad()
        (d(g(x).detach()) - d(x)).mean().backward()
        od.step()
        counter["iteration"] = (counter["iteration"] + 1) % 2
        if counter["iteration"] == 0:
            og.zero_grad()
            (-d(g(x)).mean()).backward()
            og.step()

    step = case.fn(step)
    for i in range(5):
        step(case.x + i)
        yield g, d, counter


@program(states=3)
def gradients_accumulated_over_micro_batches(case: Case) -> Seen:
    m, s = _net(case), types.SimpleNamespace(micro=0)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        (m(x).square().sum() / 2).backward()
        s.micro += 1
        if s.micro == 2:
            opt.step()
            opt.zero_grad()
            s.micro = 0

    step = case.fn(step)
    for i in range(6):
        step(case.x + i)
        yield m, s


@program
def gradients_clipped_and_norms_returned(case: Case) -> Seen:
    m = _net(case)
    opt, norms = torch.optim.SGD(m.parameters(), lr=0.1), {}

    def step(x):
        opt.zero_grad()
        m(x).square().sum().backward()
        norms["total"] = nn.utils.clip_grad_norm_(m.parameters(), 0.5)
        opt.step()
        return norms["total"]

    step = case.fn(step)
    for i in range(4):
        yield step(case.x + i), m, norms


@program(states=3)
def warmup_that_reads_a_step_of_its_own(case: Case) -> Seen:
    class Warmup:
        def __init__(self, total):
            self.step, self.total = 0, total

        def __call__(self):
            self.step = min(self.step + 1, self.total)
            return self.step / self.total

    m, warmup = _net(case), Warmup(2)

    def step(x):
        gain = warmup()
        with torch.no_grad():
            for p in m.parameters():
                p.sub_(0.1 * gain * x.mean())

    step = case.fn(step)
    for i in range(5):
        step(case.x + i)
        yield m, warmup.step


@program(each_call=True)
def cosine_written_by_hand(case: Case) -> Seen:
    m, s = _net(case), types.SimpleNamespace(step=0)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        for group_ in opt.param_groups:
            group_["lr"] = 0.1 * 0.5 * (1 + math.cos(math.pi * s.step / 10))
        s.step += 1
        opt.zero_grad()
        m(x).square().sum().backward()
        opt.step()

    step = case.fn(step)
    for i in range(4):
        step(case.x + i)
        yield m, s.step, opt.param_groups[0]["lr"]


@program
def loss_scale_in_a_tensor(case: Case) -> Seen:
    m, scale = _net(case), case.tensor(8.0)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        opt.zero_grad()
        (m(x).square().sum() * scale).backward()
        finite = torch.stack([p.grad.isfinite().all() for p in m.parameters()]).all()
        with torch.no_grad():
            for p in m.parameters():
                p.grad.div_(scale)
            scale.copy_(torch.where(finite, scale * 2, scale / 2))
        opt.step()

    step = case.fn(step)
    for i in range(4):
        step(case.x + i)
        yield m, scale


@program
def sharpness_aware_minimization(case: Case) -> Seen:
    m = _net(case)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    kept: dict[str, torch.Tensor] = {}

    def step(x):
        m(x).square().sum().backward()
        with torch.no_grad():
            for n, p in m.named_parameters():
                kept[n] = p.detach().clone()
                p.add_(0.05 * p.grad / (p.grad.norm() + 1e-6))
        opt.zero_grad()
        m(x).square().sum().backward()
        with torch.no_grad():
            for n, p in m.named_parameters():
                p.copy_(kept[n])
        opt.step()
        opt.zero_grad()

    step = case.fn(step)
    for i in range(4):
        step(case.x + i)
        yield m, kept


@program
def lookahead_around_another_optimizer(case: Case) -> Seen:
    class Lookahead:
        def __init__(self, inner):
            self.inner, self.slow = inner, defaultdict(dict)
            for own in inner.param_groups:
                for p in own["params"]:
                    self.slow[p]["weight"] = p.detach().clone()

        def zero_grad(self):
            self.inner.zero_grad()

        @torch.no_grad()
        def step(self):
            self.inner.step()
            for p, state in self.slow.items():
                state["weight"].lerp_(p, 0.5)
                p.copy_(state["weight"])

    m = _net(case)
    yield from _training(case, m, Lookahead(torch.optim.SGD(m.parameters(), lr=0.1)))
