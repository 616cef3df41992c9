"""L5 and L6: functions with a backward of their own, and hooks of gradients."""

import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("gradients", "eager jit rows")
Seen = Iterator[Any]


def _net(case: Case) -> nn.Module:
    return case.on(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)))


@program(states=2)
def function_that_saves_attributes(case: Case) -> Seen:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, cfg):
            ctx.save_for_backward(x, w)
            ctx.cfg = cfg
            return x * w * cfg["gain"]

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            gx = grad * w * ctx.cfg["gain"] if ctx.needs_input_grad[0] else None
            return gx, grad * x * 10, None

    w, cfg = case.x.requires_grad_(), {"gain": 2.0}
    f = case.fn(lambda x: Scale.apply(x, w, cfg).sum())
    for i in range(3):
        w.grad = None
        x = (case.x + i).requires_grad_(i == 1)
        f(x).backward()
        yield w, x


@program(states=2)
def function_whose_backward_reads_state(case: Case) -> Seen:
    s = types.SimpleNamespace(gain=2.0)

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return grad * s.gain

    m = case.linear()
    f = case.fn(lambda x: Scale.apply(m(x)).sum())
    for s.gain in (2.0, 2.0, 3.0, 2.0):
        m.zero_grad()
        f(case.x).backward()
        yield m


@program(each_call=True)
def function_whose_backward_counts(case: Case) -> Seen:
    counts = {"backward": 0}

    class Count(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            counts["backward"] += 1
            return grad

    m = case.linear()

    def f(x):
        m.zero_grad()
        Count.apply(m(x)).sum().backward()

    f = case.fn(f)
    for i in range(3):
        f(case.x + i)
        yield counts, m


@program(states=3)
def hooks_of_many_gradients(case: Case) -> Seen:
    m, s = case.linear(), types.SimpleNamespace(calls=0, last=None)

    def hook(grads):
        s.calls = min(s.calls + 1, 2)

    handle = torch.autograd.graph.register_multi_grad_hook(tuple(m.parameters()), hook)
    case.undo(handle.remove)

    def f(x):
        m.zero_grad()
        m(x).sum().backward()

    f = case.fn(f)
    for i in range(4):
        f(case.x + i)
        yield s, m


@program(states=2)
def hook_on_a_node_of_the_graph(case: Case) -> Seen:
    m, s = case.linear(), types.SimpleNamespace(gain=2.0)

    def f(x):
        m.zero_grad()
        y = m(x).sum()
        y.grad_fn.register_prehook(lambda grads: tuple(g * s.gain for g in grads))
        y.backward()

    f = case.fn(f)
    for s.gain in (2.0, 2.0, 3.0, 2.0):
        f(case.x)
        yield m


@program(each_call=True)
def tensor_hook_that_collects_gradients(case: Case) -> Seen:
    m, kept = case.linear(), []
    m.weight.register_hook(lambda g: kept.append(g.clone()))

    def f(x):
        m.zero_grad()
        m(x).sum().backward()

    f = case.fn(f)
    for i in range(3):
        f(case.x + i)
        yield kept, m


@program(each_call=True)
def tensor_hook_that_collects_outside(case: Case) -> Seen:
    m, kept = case.linear(), []
    m.weight.register_hook(lambda g: kept.append(g.sum().item()))
    f = case.fn(lambda x: m(x).sum())
    for i in range(3):
        m.zero_grad()
        f(case.x + i).backward()
        yield kept, m


@program(each_call=True)
def forward_hook_that_always_runs(case: Case) -> Seen:
    class Failing(nn.Module):
        fail = False

        def forward(self, x):
            if self.fail:
                raise ValueError("failed")
            return x * 2

    m, seen = Failing(), []
    m.register_forward_hook(lambda module, args, y: seen.append(y is None), always_call=True)
    f = case.fn(lambda x: m(x))
    for i in range(2):
        yield f(case.x + i), seen
    m.fail = True
    try:
        f(case.x)
    except ValueError as error:
        yield str(error), seen


@program
def gradient_clipped_by_value_inside(case: Case) -> Seen:
    m = _net(case)

    def f(x):
        m.zero_grad()
        m(x).square().sum().backward()
        nn.utils.clip_grad_value_(m.parameters(), 0.01)
        return torch.stack([p.grad.norm() for p in m.parameters()])

    f = case.fn(f)
    for i in range(3):
        yield f(case.x + i), m


@program
def gradient_of_a_shared_parameter(case: Case) -> Seen:
    a, b = case.linear(3, 3), case.linear(3, 3)
    b.weight = a.weight
    f = case.fn(lambda x: b(a(x)).sum())
    for i in range(3):
        a.zero_grad(), b.zero_grad()
        f(case.x + i).backward()
        yield a, b


@program
def jacobian_by_rows(case: Case) -> Seen:
    f = case.fn(lambda x: x.square() * x.flip(0))
    for i in range(3):
        x = (case.x + i).requires_grad_()
        y = f(x)
        yield [torch.autograd.grad(y[j], x, retain_graph=True)[0] for j in range(3)]


@program
def result_kept_and_differentiated_later(case: Case) -> Seen:
    m, kept = case.linear(), []
    f = case.fn(lambda x: m(x).square().sum())
    for i in range(3):
        kept.append(f(case.x + i))
        yield kept[-1]
    for y in kept:
        m.zero_grad()
        y.backward()
        yield m


@program
def loss_of_a_step_that_has_gone_backward(case: Case) -> Seen:
    m = case.linear()
    opt = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        opt.zero_grad()
        loss = m(x).square().sum()
        loss.backward()
        opt.step()
        return loss

    step = case.fn(step)
    for i in range(3):
        loss = step(case.x + i)
        yield loss.item(), loss.detach(), m


@program
def tensor_made_of_parameters_in_state(case: Case) -> Seen:
    m, s = case.linear(), types.SimpleNamespace(norm=None)

    def f(x):
        s.norm = torch.stack([p.norm() for p in m.parameters()]).sum()
        return m(x).sum()

    f = case.fn(f)
    for i in range(3):
        m.zero_grad()
        (f(case.x + i) + 0.5 * s.norm).backward()
        yield m, s


@program
def leaves_over_an_argument(case: Case) -> Seen:
    m = case.linear()

    def f(x):
        x = x.detach().requires_grad_()
        (m(x).square().sum()).backward()
        return x.grad

    f = case.fn(f)
    for i in range(3):
        m.zero_grad()
        yield f(case.x + i), m


@program
def leaf_rebound_by_each_step(case: Case) -> Seen:
    params = {"w": case.x.requires_grad_()}

    def step(x):
        w = params["w"]
        loss = (x * w).sum().square()
        loss.backward()
        params["w"] = (w - 0.01 * w.grad).detach().requires_grad_()
        return loss.detach()

    step = case.fn(step)
    for i in range(4):
        before = params["w"]
        yield step(case.x + i), before.grad, params


@program
def backward_outside_that_counts(case: Case) -> Seen:
    counts = {"backward": 0}

    class Count(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            counts["backward"] += 1
            return grad

    m = case.linear()
    f = case.fn(lambda x: Count.apply(m(x)).sum())
    for i in range(3):
        m.zero_grad()
        f(case.x + i).backward()
        yield counts, m
