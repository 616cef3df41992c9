"""Ordinary model code: teachers, queues, features kept, statistics, schedules."""

import copy
import math
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("research", "jit rows trace")
Seen = Iterator[Any]


@program
def teacher_and_student(case: Case) -> Seen:
    student = case.linear(3, 2)
    teacher = copy.deepcopy(student).requires_grad_(False).eval()

    def f(x):
        with torch.no_grad():
            target = teacher(x)
            for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
                t.mul_(0.9).add_(s, alpha=0.1)
        return F.mse_loss(student(x) * 2, target)

    f = case.fn(f)
    for i in range(4):
        student.zero_grad()
        f(case.x + i).backward()
        with torch.no_grad():
            student.weight.sub_(0.1 * student.weight.grad)
        yield student, teacher


@program
def queue_of_negatives_with_a_pointer(case: Case) -> Seen:
    class Queue(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("queue", torch.zeros(4, 3))
            self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

        def forward(self, x):
            score = x @ self.queue.t()
            self.queue.index_copy_(0, self.pointer, x[None].detach())
            self.pointer.add_(1).remainder_(4)
            return score

    m = case.on(Queue())
    f = case.fn(m)
    for i in range(5):
        yield f(case.x + i), m


@program
def features_gathered_by_hooks(case: Case) -> Seen:
    m, features = case.on(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))), {}

    def keep(name):
        def hook(module, args, y):
            features[name] = y.detach()

        return hook

    for name, layer in m.named_children():
        layer.register_forward_hook(keep(name))
    f = case.fn(lambda x: m(x))
    for i in range(4):
        yield f(case.x + i), features


@program
def attention_weights_kept(case: Case) -> Seen:
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.weights = nn.Linear(3, 3), None

        def forward(self, x):
            self.weights = (self.linear(x) @ x.t()).softmax(-1)
            return self.weights @ x

    m = case.on(Attention())
    f = case.fn(m)
    for i in range(4):
        yield f(case.rows + i), m.weights


@program(states=2)
def running_statistics_started_at_first(case: Case) -> Seen:
    class Whiten(nn.Module):
        def __init__(self):
            super().__init__()
            self.initialized = False
            self.register_buffer("shift", torch.zeros(3))

        def forward(self, x):
            if self.training and not self.initialized:
                self.shift.copy_(x.mean(0))
                self.initialized = True
            return x - self.shift

    m = case.on(Whiten())
    f = case.fn(m)
    for i in range(3):
        yield f(case.rows + i), m, m.initialized
    m.initialized = False
    yield f(case.rows), m, m.initialized


@program
def codebook_updated_by_averages(case: Case) -> Seen:
    class Codebook(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("codes", torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]))

        def forward(self, x):
            index = torch.cdist(x, self.codes).argmin(-1)
            onehot = F.one_hot(index, 2).float()
            if self.training:
                with torch.no_grad():
                    self.codes.mul_(0.9).add_(onehot.t() @ x, alpha=0.1)
            return x + (self.codes[index] - x).detach(), index

    m = case.on(Codebook())
    f = case.fn(m)
    for i in range(4):
        yield f(case.rows + i), m


@program(states=3, modes="jit rows")
def temperature_annealed_by_the_caller(case: Case) -> Seen:
    class Gumbel(nn.Module):
        def __init__(self):
            super().__init__()
            self.tau, self.hard = 1.0, False

        def forward(self, x):
            y = (x / self.tau).softmax(-1)
            return y.round() if self.hard else y

    m = Gumbel()
    f = case.fn(m)
    yield f(case.x)
    m.tau = 0.5
    yield f(case.x)
    m.hard = True
    yield f(case.x)
    m.tau, m.hard = 1.0, False
    yield f(case.x)


@program(states=2, modes="jit rows")
def weights_tied_later(case: Case) -> Seen:
    m = case.on(nn.ModuleDict({"embed": nn.Linear(3, 3), "head": nn.Linear(3, 3)}))
    f = case.fn(lambda x: m["head"](m["embed"](x)))
    own = m["head"].weight
    for weight in (own, m["embed"].weight, m["embed"].weight, own):
        m["head"].weight = weight
        m.zero_grad()
        f(case.x).sum().backward()
        yield m


@program(states=2, modes="jit rows")
def activation_checkpointing_switched(case: Case) -> Seen:
    m = case.on(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))
    s = types.SimpleNamespace(checkpointing=False)

    def f(x):
        if s.checkpointing:
            return torch.utils.checkpoint.checkpoint(m, x, use_reentrant=False).sum()
        return m(x).sum()

    f = case.fn(f)
    for s.checkpointing in (False, True, True, False):
        m.zero_grad()
        f(case.x).backward()
        yield m


@program
def positions_from_shapes_and_constants(case: Case) -> Seen:
    class Position(nn.Module):
        scale = math.sqrt(3)

        def forward(self, x):
            n, d = x.shape
            position = torch.arange(n, device=x.device)[:, None]
            frequency = torch.arange(d, device=x.device) * (-math.log(100.0) / d)
            return x * self.scale + torch.sin(position * frequency.exp())

    f = case.fn(Position())
    for i in range(3):
        yield f(case.rows + i)


@program(states=3)
def diffusion_step_with_a_table(case: Case) -> Seen:
    class Diffusion:
        def __init__(self, device):
            self.alphas = torch.linspace(0.9, 0.5, 3, device=device)
            self.t = 0

        def step(self, x):
            y = x * self.alphas[self.t]
            self.t = (self.t + 1) % 3
            return y

    d = Diffusion(case.device)
    f = case.fn(d.step)
    for i in range(5):
        yield f(case.x + i), d.t


@program(states=2)
def recurrent_state_kept_between_calls(case: Case) -> Seen:
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.hidden = nn.Linear(6, 3), None

        def forward(self, x):
            if self.hidden is None:
                self.hidden = torch.zeros_like(x)
            self.hidden = self.cell(torch.cat([x, self.hidden])).tanh().detach()
            return self.hidden * 2

    m = case.on(Recurrent())
    f = case.fn(m)
    for i in range(4):
        yield f(case.x + i), m.hidden
    m.hidden = None
    yield f(case.x), m.hidden


@program
def early_exit_list_of_outputs(case: Case) -> Seen:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])

        def forward(self, x):
            outputs = []
            for layer in self.layers:
                x = layer(x).tanh()
                outputs.append(x)
            return {"last": outputs[-1], "all": outputs, "n": len(outputs)}

    m = case.on(Net())
    f = case.fn(m)
    for i in range(3):
        m.zero_grad()
        made = f(case.x + i)
        made["all"][0].sum().backward()
        yield made["n"], made["last"] is made["all"][-1], m


@program(states=2, modes="jit rows")
def module_list_that_grows(case: Case) -> Seen:
    m = case.on(nn.ModuleList([nn.Linear(3, 3)]))

    def f(x):
        for layer in m:
            x = layer(x)
        return x

    f = case.fn(f)
    yield f(case.x)
    yield f(case.x + 1)
    m.append(case.linear(3, 3))
    yield f(case.x)
    yield f(case.x + 1)
