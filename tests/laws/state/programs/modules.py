"""L8: a jitted module is a module."""

import copy
import io
import pickle
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("modules", "eager jit rows compile")
Seen = Iterator[Any]


def _net(case: Case) -> nn.Module:
    return case.on(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.0), nn.Linear(4, 2)))


def _plain(names: Any) -> list[str]:
    """Names without the prefix that `torch.compile` adds to the names of what it wraps."""
    return [name.replace("_orig_mod.", "").replace("_orig_mod", "") for name in names]


@program
def is_a_module(case: Case) -> Seen:
    f = case.fn(_net(case))
    for i in range(3):
        yield isinstance(f, nn.Module), callable(f), f(case.x + i)


@program
def parameters_of_the_module(case: Case) -> Seen:
    m = _net(case)
    f = case.fn(m)
    for i in range(3):
        f(case.x + i)
        yield all(a is b for a, b in zip(f.parameters(), m.parameters(), strict=True))
        yield _plain(name for name, _ in f.named_parameters())
        yield sum(p.numel() for p in f.parameters() if p.requires_grad)


@program(modes="jit rows")
def keys_of_the_state_dict_as_torch_compile(case: Case) -> Seen:
    m = _net(case)
    compiled = torch.compile(m, backend="eager")
    wrapped = case.fn(m) if case.mode != "cpu" else compiled
    for i in range(3):
        wrapped(case.x + i) if case.mode != "cpu" else m(case.x + i)
        yield list(wrapped.state_dict()), [n for n, _ in wrapped.named_modules()]


@program
def state_dict_and_load_state_dict(case: Case) -> Seen:
    m = _net(case)
    f = case.fn(m)
    yield f(case.x)
    kept = {name: value.clone() for name, value in f.state_dict().items()}
    with torch.no_grad():
        m[0].weight.mul_(2)
    yield f(case.x)
    f.load_state_dict(kept)
    yield f(case.x)
    f.load_state_dict({name: value * 3 for name, value in kept.items()})
    yield f(case.x), m


@program
def state_dict_of_the_inner_module(case: Case) -> Seen:
    m = _net(case)
    f = case.fn(m)
    yield f(case.x)
    m.load_state_dict({name: value + 1 for name, value in m.state_dict().items()})
    yield f(case.x)
    m.load_state_dict({name: value - 1 for name, value in m.state_dict().items()}, assign=True)
    yield f(case.x), f(case.x)


@program(states=2)
def train_and_eval(case: Case) -> Seen:
    m = case.on(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    f = case.fn(m)
    yield f(case.rows), m, f.training
    f.eval()
    yield f(case.rows), m, f.training
    f.train()
    yield f(case.rows), m, f.training
    m.eval()
    yield f(case.rows), m


@program(states=3)
def moved_to_another_dtype(case: Case) -> Seen:
    f = case.fn(_net(case))
    yield f(case.x)
    f.to(torch.float64)
    yield f(case.x.double())
    f.half().float()
    yield f(case.x)
    yield f.double() is f, f(case.x.double())


@program
def moved_to_its_device(case: Case) -> Seen:
    m = nn.Sequential(nn.Linear(3, 2))
    f = case.fn(m)
    f.to(case.device)
    for i in range(3):
        yield f(case.x + i)


@program
def inside_a_sequential(case: Case) -> Seen:
    inner = case.linear(3, 3)
    outer = case.on(nn.Sequential(nn.Linear(3, 3)))
    outer.append(case.fn(inner))
    for i in range(3):
        outer.zero_grad()
        outer(case.x + i).sum().backward()
        yield _plain(outer.state_dict()), inner, sum(1 for _ in outer.parameters())


@program
def as_a_submodule(case: Case) -> Seen:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = case.fn(case.linear(3, 3))
            self.head = case.linear(3, 2)

        def forward(self, x):
            return self.head(self.body(x).tanh())

    m = Net()
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    for i in range(3):
        opt.zero_grad()
        loss = m(case.x + i).square().sum()
        loss.backward()
        opt.step()
        yield loss, list(m.parameters()), _plain(m.state_dict())


@program
def replaces_a_submodule(case: Case) -> Seen:
    m = _net(case)
    m[0] = case.fn(m[0])
    yield m(case.x), _plain(m.state_dict())
    m.eval()
    yield m(case.x), [s.training for s in m.modules() if isinstance(s, nn.Linear)]
    m.zero_grad()
    m(case.x).sum().backward()
    yield [p.grad for p in m.parameters()]


@program
def checkpoint_of_a_model_with_a_jitted_part(case: Case) -> Seen:
    class Net(nn.Module):
        def __init__(self, wrap):
            super().__init__()
            self.body = wrap(case.linear(3, 3))
            self.head = case.linear(3, 2)

        def forward(self, x):
            return self.head(self.body(x))

    m = Net(case.fn)
    for i in range(3):
        m(case.x + i)
        yield _plain(m.state_dict()), m(case.x)
        other = Net(case.fn)
        other.load_state_dict(m.state_dict())
        yield other(case.x), sorted(_plain(n for n, _ in other.named_parameters()))


@program
def hooks_on_the_jitted_module(case: Case) -> Seen:
    f, seen = case.fn(_net(case)), []
    yield f(case.x)
    handle = f.register_forward_hook(lambda module, args, y: seen.append(1) or y * 10)
    yield f(case.x), seen
    yield f(case.x), seen
    handle.remove()
    yield f(case.x), seen


@program(states=2)
def pre_hooks_on_the_jitted_module(case: Case) -> Seen:
    f = case.fn(_net(case))
    handle = f.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    yield f(case.x)
    handle.remove()
    yield f(case.x)
    yield f(case.x + 1)


@program
def copied_deeply(case: Case) -> Seen:
    m = _net(case)
    f = case.fn(m)
    yield f(case.x)
    g = copy.deepcopy(f)
    with torch.no_grad():
        m[0].weight.zero_()
    yield g(case.x), f(case.x), isinstance(g, nn.Module)
    yield all(a is not b for a, b in zip(f.parameters(), g.parameters(), strict=True))
    yield g(case.x)


@program(modes="eager jit rows")
def saved_whole_and_loaded(case: Case) -> Seen:
    f = case.fn(_net(case))
    yield f(case.x)
    buffer = io.BytesIO()
    torch.save(f, buffer)
    buffer.seek(0)
    g = torch.load(buffer, weights_only=False)
    yield g(case.x), isinstance(g, nn.Module)
    yield pickle.loads(pickle.dumps(f))(case.x)


@program
def state_dict_saved_and_loaded(case: Case) -> Seen:
    f, g = case.fn(_net(case)), case.fn(_net(case))
    yield f(case.x)
    buffer = io.BytesIO()
    torch.save(f.state_dict(), buffer)
    buffer.seek(0)
    yield g(case.x)
    g.load_state_dict(torch.load(buffer))
    yield g(case.x)
