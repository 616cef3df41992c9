"""Ordinary model code: caches, experts, adapters, dropout schedules, teachers, features kept."""

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


@program(each_call=True)
def cache_of_keys_that_grows(case: Case) -> Seen:
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.kv, self.cache = nn.Linear(3, 6), None

        def forward(self, x):
            k, v = self.kv(x).chunk(2, -1)
            if self.cache is not None:
                k = torch.cat([self.cache[0], k])
                v = torch.cat([self.cache[1], v])
            self.cache = (k, v)
            return F.softmax(x @ k.t(), -1) @ v

    m = case.on(Attention())
    f = case.fn(m)
    with torch.no_grad():
        for i in range(4):
            yield f(case.rows + i), m.cache
        m.cache = None
        yield f(case.rows)


@program(states=4)
def cache_of_fixed_size_with_a_position(case: Case) -> Seen:
    class Cache:
        def __init__(self, device):
            self.keys, self.position = torch.zeros(4, 3, device=device), 0

        def update(self, x):
            self.keys[self.position] = x
            self.position = (self.position + 1) % 4
            return self.keys

    cache = Cache(case.device)
    f = case.fn(lambda x: cache.update(x).sum(0))
    for i in range(6):
        yield f(case.x + i), cache.position, cache.keys


@program
def cache_with_a_position_that_is_a_tensor(case: Case) -> Seen:
    keys, position = case.x.new_zeros(4, 3), case.tensor([0])

    def f(x):
        keys.index_copy_(0, position, x[None])
        position.add_(1).remainder_(4)
        return keys.sum(0)

    f = case.fn(f)
    for i in range(6):
        yield f(case.x + i), position


@program
def cache_passed_as_an_argument(case: Case) -> Seen:
    def f(x, cache):
        cache["keys"] = cache["keys"] * 0.5 + x
        return cache["keys"].sum()

    f = case.fn(f)
    cache = {"keys": case.x}
    for i in range(4):
        yield f(case.x + i, cache), cache


@program(states=3)
def cache_that_is_a_list_argument(case: Case) -> Seen:
    def f(x, past):
        past.append(x)
        return torch.stack(past).sum(0)

    f = case.fn(f)
    past: list[torch.Tensor] = []
    for i in range(3):
        yield f(case.x + i, past), past


@program(states=2)
def rotary_tables_made_at_first(case: Case) -> Seen:
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.length = None, 0

        def forward(self, x):
            if x.shape[0] > self.length:
                self.length = x.shape[0]
                self.table = torch.arange(self.length, device=x.device)[:, None].float().cos()
            return x * self.table[: x.shape[0]]

    m = Rotary()
    f = case.fn(m)
    for i in range(3):
        yield f(case.rows + i), m.length, m.table


@program(states=2)
def causal_mask_cached_by_length(case: Case) -> Seen:
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self._mask = None

        def forward(self, x):
            n = x.shape[-1]
            if self._mask is None or self._mask.shape[0] != n:
                self._mask = torch.ones(n, n, device=x.device).tril().bool()
            return torch.where(self._mask, x, -1.0)

    m = Masked()
    f = case.fn(m)
    for i in range(4):
        yield f(case.x + i), m._mask


@program
def experts_with_an_auxiliary_loss(case: Case) -> Seen:
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.aux = nn.Linear(3, 2), None
            self.experts = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

        def forward(self, x):
            p = self.gate(x).softmax(-1)
            self.aux = p.mean(0).square().sum()
            return sum(p[:, i, None] * e(x) for i, e in enumerate(self.experts))

    m = case.on(Experts())
    f = case.fn(m)
    for i in range(4):
        m.zero_grad()
        (f(case.rows + i).sum() + m.aux).backward()
        yield m, m.aux


@program(modes="jit rows")
def experts_trained_in_one_step(case: Case) -> Seen:
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.aux = nn.Linear(3, 3), None

        def forward(self, x):
            self.aux = self.linear.weight.square().mean()
            return self.linear(x)

    m = case.on(nn.Sequential(Layer(), Layer()))
    opt = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        opt.zero_grad()
        loss = m(x).square().sum() + sum(layer.aux for layer in m)
        loss.backward()
        opt.step()
        return loss.detach()

    step = case.fn(step)
    for i in range(4):
        yield step(case.x + i), m


@program(states=2, modes="jit rows")
def adapter_switched_on_and_off(case: Case) -> Seen:
    class LoRA(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 1), nn.Linear(1, 2)
            self.enabled, self.scaling = True, 2.0

        def forward(self, x):
            y = self.base(x)
            return y + self.scaling * self.b(self.a(x)) if self.enabled else y

    m = case.on(LoRA())
    f = case.fn(m)
    for m.enabled in (True, False, False, True):
        yield f(case.x)


@program(states=4, modes="jit rows")
def adapter_chosen_by_name(case: Case) -> Seen:
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.adapters = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 2)})
            self.active: list[str] = ["a"]

        def forward(self, x):
            return sum(self.adapters[name](x) for name in self.active)

    m = case.on(Adapted())
    f = case.fn(m)
    yield f(case.x)
    m.active = ["b"]
    yield f(case.x)
    m.active.append("a")
    yield f(case.x)
    m.active = ["a"]
    yield f(case.x)


@program(states=2, modes="jit rows")
def adapter_merged_into_the_weights(case: Case) -> Seen:
    class LoRA(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.delta = nn.Linear(3, 2), nn.Parameter(torch.ones(2, 3))
            self.merged = False

        def merge(self):
            with torch.no_grad():
                self.base.weight.add_(self.delta, alpha=-1 if self.merged else 1)
            self.merged = not self.merged

        def forward(self, x):
            return self.base(x) if self.merged else self.base(x) + F.linear(x, self.delta)

    m = case.on(LoRA())
    f = case.fn(m)
    for _ in range(4):
        yield f(case.x)
        m.merge()


@program(states=3, modes="jit rows")
def dropout_whose_probability_changes(case: Case) -> Seen:
    m = nn.Sequential(nn.Identity(), nn.Dropout(0.0))
    f = case.fn(m)
    for m[1].p in (0.0, 1.0, 0.0, 1.0):
        yield f(case.x)


@program(states=3, modes="jit rows")
def layers_dropped_by_a_schedule(case: Case) -> Seen:
    m = case.on(nn.ModuleList([nn.Linear(3, 3) for _ in range(3)]))
    schedule = {"depth": 3}

    def f(x):
        for layer in m[: schedule["depth"]]:
            x = layer(x).tanh()
        return x

    f = case.fn(f)
    for schedule["depth"] in (3, 2, 1, 3):
        yield f(case.x)


@program(states=2, modes="jit rows")
def curriculum_of_lengths(case: Case) -> Seen:
    s = types.SimpleNamespace(stage=0, lengths=[2, 3])
    f = case.fn(lambda x: x[: s.lengths[s.stage]].sum())
    for s.stage in (0, 1, 1, 0):
        yield f(case.x)
