"""L8: a jitted module is trained, changed and nested as a module is."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import calque
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
def optimizer_over_its_parameters(case: Case) -> Seen:
    m = _net(case)
    f = case.fn(m)
    opt = torch.optim.AdamW(f.parameters(), lr=0.1)
    for i in range(4):
        opt.zero_grad()
        loss = f(case.x + i).square().sum()
        loss.backward()
        opt.step()
        yield loss, m, opt


@program
def apply_and_zero_grad_and_requires_grad(case: Case) -> Seen:
    m = _net(case)
    f = case.fn(m)
    yield f(case.x)

    def halve(module):
        if isinstance(module, nn.Linear):
            with torch.no_grad():
                module.weight.div_(2)

    f.apply(halve)
    yield f(case.x)
    f(case.x).sum().backward()
    yield m
    f.zero_grad()
    yield m


@program(states=2)
def frozen_through_the_jitted_module(case: Case) -> Seen:
    m = _net(case)
    f = case.fn(m)
    yield f(case.x).requires_grad
    f.requires_grad_(False)
    yield f(case.x).requires_grad
    f.requires_grad_(True)
    yield f(case.x).requires_grad, m


@program
def names_of_modules_and_children(case: Case) -> Seen:
    m = _net(case)
    f = case.fn(m)
    for i in range(3):
        f(case.x + i)
        yield [n for n in _plain(n for n, _ in f.named_modules()) if n]
        yield any(s is m[0] for s in f.modules()), [n for n, _ in f.named_buffers()]


@program(states=2)
def attributes_pass_to_the_inner_module(case: Case) -> Seen:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.gain = nn.Linear(3, 2), 2.0

        def forward(self, x):
            return self.linear(x) * self.gain

        def describe(self):
            return f"gain {self.gain}"

    m = case.on(Net())
    f = case.fn(m)
    yield f(case.x), f.gain, f.describe(), f.linear is m.linear
    m.gain = 3.0
    yield f(case.x), f.gain, f.describe()
    yield f(case.x), hasattr(f, "bananas")


@program(states=2)
def attribute_set_on_the_jitted_module(case: Case) -> Seen:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.gain = nn.Linear(3, 2), 2.0

        def forward(self, x):
            return self.linear(x) * self.gain

    m = case.on(Net())
    f = case.fn(m)
    yield f(case.x)
    f.gain = 3.0
    yield f(case.x), m.gain
    f.gain = 2.0
    yield f(case.x), m.gain


@program
def items_of_a_jitted_sequential(case: Case) -> Seen:
    m = _net(case)
    f = case.fn(m)
    yield f(case.x)
    yield len(m), m[0] is f.get_submodule("0") if case.mode == "cpu" else True
    yield f(case.x), f.get_parameter("0.weight") is m[0].weight if case.mode == "cpu" else True


@program
def methods_other_than_forward(case: Case) -> Seen:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def encode(self, x):
            return self.linear(x)

        def forward(self, x):
            return self.encode(x).tanh()

    f = case.fn(case.on(Net()))
    for i in range(3):
        yield f(case.x + i), f.encode(case.x), f.forward(case.x)


@program(modes="eager jit rows")
def jitted_within_a_jitted_function(case: Case) -> Seen:
    m = _net(case)
    inner = case.fn(m)

    def f(x):
        return inner(x).sum() + inner(x * 2).sum()

    f = case.fn(f)
    for i in range(3):
        m.zero_grad()
        y = f(case.x + i)
        y.backward()
        yield y, m


@program(modes="eager jit rows")
def jitted_module_within_a_jitted_step(case: Case) -> Seen:
    model = case.fn(_net(case))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        opt.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        opt.step()
        return loss.detach()

    step = case.fn(step)
    for i in range(3):
        yield step(case.x + i), list(model.parameters())


@program(modes="eager jit rows")
def jitted_twice(case: Case) -> Seen:
    m = _net(case)
    f = case.fn(case.fn(m))
    for i in range(3):
        yield f(case.x + i), isinstance(f, nn.Module)


@program(states=2)
def submodule_added_and_replaced(case: Case) -> Seen:
    m = _net(case)
    f = case.fn(m)
    yield f(case.x)
    m.append(nn.Tanh())
    yield f(case.x)
    yield f(case.x)
    del m[4]
    yield f(case.x)


@program
def buffers_of_the_module(case: Case) -> Seen:
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))
            self.register_buffer("last", None)

        def forward(self, x):
            self.seen += 1
            return x * self.seen

    m = case.on(Counting())
    f = case.fn(m)
    for i in range(3):
        yield f(case.x + i), m, dict(m.named_buffers())


@program(modes="eager jit rows")
def weights_shared_by_two_jitted_modules(case: Case) -> Seen:
    a, b = case.linear(3, 3), case.linear(3, 3)
    b.weight = a.weight
    f, g = case.fn(a), case.fn(b)
    opt = torch.optim.SGD({*f.parameters(), *g.parameters()}, lr=0.1)
    for i in range(3):
        opt.zero_grad()
        g(f(case.x + i)).sum().backward()
        opt.step()
        yield a, b


@program(modes="jit")
def a_jitted_method_of_a_class(case: Case) -> Seen:
    wrap = calque.jit if case.mode != "cpu" else (lambda fn: fn)

    class Scaler:
        def __init__(self, gain):
            self.gain = gain

        @wrap
        def scale(self, x):
            return x * self.gain

    a, b = Scaler(2.0), Scaler(3.0)
    for s in (a, b, a):
        yield s.scale(case.x)
    a.gain = 7.0
    yield a.scale(case.x), b.scale(case.x)


@program(modes="jit")
def a_module_whose_forward_is_jitted(case: Case) -> Seen:
    wrap = calque.jit if case.mode != "cpu" else (lambda fn: fn)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.gain = nn.Linear(3, 2), 2.0

        @wrap
        def forward(self, x):
            return self.linear(x) * self.gain

    m = case.on(Net())
    for m.gain in (2.0, 3.0, 2.0):
        yield m(case.x), list(m.state_dict())
