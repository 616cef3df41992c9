"""L5: hooks that are added, removed or changed between the calls."""

import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_of_torch

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("hooks", "eager jit rows")
Seen = Iterator[Any]


@program(states=2)
def forward_hook_added_and_removed(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x))
    yield f(case.x)
    handle = m.register_forward_hook(lambda module, args, y: y * 10)
    yield f(case.x)
    yield f(case.x)
    handle.remove()
    yield f(case.x)


@program(states=4)
def forward_hook_of_the_jitted_module_itself(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(m)
    yield f(case.x)
    first = m.register_forward_hook(lambda module, args, y: y * 10)
    yield f(case.x)
    m.register_forward_hook(lambda module, args, y: y + 1)
    yield f(case.x)
    first.remove()
    yield f(case.x)


@program(states=2)
def forward_hook_whose_closure_changes(case: Case) -> Seen:
    m, s = case.linear(), types.SimpleNamespace(gain=2.0)
    m.register_forward_hook(lambda module, args, y: y * s.gain)
    f = case.fn(lambda x: m(x))
    for s.gain in (2.0, 3.0, 3.0, 2.0):
        yield f(case.x)


@program(states=2)
def forward_pre_hook_that_replaces_the_arguments(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x))
    yield f(case.x)
    handle = m.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    yield f(case.x)
    yield f(case.x)
    handle.remove()
    yield f(case.x)


@program(states=2)
def forward_pre_hook_with_keywords(case: Case) -> Seen:
    class Net(nn.Module):
        def forward(self, x, gain=1.0):
            return x * gain

    m, s = Net(), types.SimpleNamespace(gain=2.0)
    m.register_forward_pre_hook(
        lambda module, args, kwargs: (args, kwargs | {"gain": s.gain}), with_kwargs=True
    )
    f = case.fn(lambda x: m(x))
    for s.gain in (2.0, 3.0, 3.0, 2.0):
        yield f(case.x)


@program(states=2)
def order_of_two_forward_hooks(case: Case) -> Seen:
    m = case.linear()
    m.register_forward_hook(lambda module, args, y: y * 2)
    f = case.fn(lambda x: m(x))
    yield f(case.x)
    handle = m.register_forward_hook(lambda module, args, y: y + 1, prepend=True)
    yield f(case.x)
    yield f(case.x)
    handle.remove()
    yield f(case.x)


@program(states=2)
def hook_of_a_submodule_that_keeps_what_it_sees(case: Case) -> Seen:
    m, kept = case.on(nn.Sequential(nn.Linear(3, 4), nn.ReLU())), {}
    m[0].register_forward_hook(lambda module, args, y: kept.update(last=y.detach()))
    f = case.fn(lambda x: m(x).sum())
    for i in range(4):
        yield f(case.x + i), kept


@program(each_call=True)
def hook_that_counts_calls(case: Case) -> Seen:
    m, calls = case.linear(), []
    m.register_forward_hook(lambda module, args, y: calls.append(type(module).__name__))
    f = case.fn(lambda x: m(x))
    for _ in range(4):
        yield f(case.x), calls


@program(states=2)
def hook_that_removes_itself(case: Case) -> Seen:
    m = case.linear()

    def hook(module, args, y):
        handle.remove()
        return y * 100

    handle = m.register_forward_hook(hook)
    f = case.fn(lambda x: m(x))
    for _ in range(3):
        yield f(case.x), len(m._forward_hooks)
    handle = m.register_forward_hook(hook)
    yield f(case.x), len(m._forward_hooks)
    yield f(case.x), len(m._forward_hooks)


@program(states=2)
def global_forward_hook(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x))
    yield f(case.x)
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, y: y * 10)
    case.undo(handle.remove)
    yield f(case.x)
    yield f(case.x)
    handle.remove()
    yield f(case.x)


@program(states=2)
def global_forward_pre_hook(case: Case) -> Seen:
    m, s = case.linear(), types.SimpleNamespace(gain=2.0)
    handle = nn.modules.module.register_module_forward_pre_hook(
        lambda module, args: (args[0] * s.gain,)
    )
    case.undo(handle.remove)
    f = case.fn(lambda x: m(x))
    for s.gain in (2.0, 3.0, 3.0, 2.0):
        yield f(case.x)


@program(states=2)
def global_hooks_that_are_counted(case: Case) -> Seen:
    m = case.linear()
    names = [name for name in vars(module_of_torch) if name.startswith("_global_")]

    class Counting(nn.Module):
        def forward(self, x):
            found = [getattr(module_of_torch, name) for name in names]
            return m(x) * (1 + sum(len(one) for one in found if one is not None))

    f = case.fn(Counting())
    yield f(case.x)
    yield f(case.x)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *call: None)
    yield f(case.x)
    yield f(case.x)
    handle.remove()
    yield f(case.x)
