"""L6: backward more than once, accumulated, penalized, and what tensors keep."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("gradients", "eager jit rows trace")
Seen = Iterator[Any]


@program
def graph_retained(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x).square().sum())
    for i in range(3):
        m.zero_grad()
        y = f(case.x + i)
        y.backward(retain_graph=True)
        y.backward()
        yield m


@program
def backward_twice_without_retaining(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x).square().sum())
    for i in range(3):
        m.zero_grad()
        y = f(case.x + i)
        y.backward()
        try:
            y.backward()
        except RuntimeError:
            yield "raised", m
        else:
            yield "passed", m


@program
def two_results_backward_one_after_the_other(case: Case) -> Seen:
    m = case.linear()

    def f(x):
        h = m(x)
        return h.sum(), h.square().sum()

    f = case.fn(f)
    for i in range(3):
        m.zero_grad()
        a, b = f(case.x + i)
        a.backward(retain_graph=True)
        b.backward()
        yield m


@program(modes="eager jit rows")
def backward_inside_and_outside(case: Case) -> Seen:
    m = case.linear()

    def f(x):
        m.zero_grad()
        y = m(x)
        y.sum().backward()
        return m(x).square().sum()

    f = case.fn(f)
    for i in range(3):
        f(case.x + i).backward()
        yield m


@program(modes="eager jit rows", states=2)
def gradients_accumulated_inside(case: Case) -> Seen:
    m = case.linear()

    def f(x):
        loss = m(x).sum()
        loss.backward()
        return loss.detach()

    f = case.fn(f)
    for i in range(4):
        if i == 3:
            m.zero_grad()
        yield f(case.x + i), m


@program
def gradients_accumulated_outside(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x).sum())
    for i in range(4):
        f(case.x + i).backward()
        yield m


@program(modes="eager jit rows", states=2)
def gradient_read_inside(case: Case) -> Seen:
    m = case.linear()

    def f(x):
        total = x.sum() * 0
        for p in m.parameters():
            if p.grad is not None:
                total = total + p.grad.sum()
        return total

    f = case.fn(f)
    yield f(case.x)
    m(case.x).sum().backward()
    yield f(case.x)
    m(case.x).sum().backward()
    yield f(case.x)
    m.zero_grad()
    yield f(case.x)


@program(modes="eager jit rows")
def gradient_set_to_zero_or_none(case: Case) -> Seen:
    m = case.linear()

    def f(x, to_none):
        m(x).sum().backward()
        kept = m.weight.grad.clone()
        m.zero_grad(set_to_none=to_none)
        return kept

    f = case.fn(f)
    for to_none in (True, True, True):
        yield f(case.x, to_none), m


@program
def gradient_penalty(case: Case) -> Seen:
    m = case.on(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)))
    f = case.fn(lambda x: m(x).sum())
    for i in range(3):
        m.zero_grad()
        x = (case.x * 0.1 + i).requires_grad_()
        y = f(x)
        (grad,) = torch.autograd.grad(y, x, create_graph=True)
        (y + grad.square().sum()).backward()
        yield m


@program
def gradient_penalty_inside(case: Case) -> Seen:
    m = case.on(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)))

    def f(x):
        x = x.detach().requires_grad_()
        (grad,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
        return m(x).sum() + grad.square().sum()

    f = case.fn(f)
    for i in range(3):
        m.zero_grad()
        f(case.x * 0.1 + i).backward()
        yield {name: p.grad for name, p in m.named_parameters() if name != "2.bias"}


@program
def second_derivative_of_a_result(case: Case) -> Seen:
    f = case.fn(lambda x: (x**3).sum())
    for i in range(3):
        x = (case.x + i).requires_grad_()
        (g,) = torch.autograd.grad(f(x), x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x)
        yield g.detach(), h


@program
def grad_with_allow_unused(case: Case) -> Seen:
    a, b = case.x.requires_grad_(), case.x.requires_grad_()
    f = case.fn(lambda x: (x * a).sum())
    for i in range(3):
        yield torch.autograd.grad(f(case.x + i), (a, b), allow_unused=True)


@program
def grad_with_allow_unused_inside(case: Case) -> Seen:
    a, b = case.x.requires_grad_(), case.x.requires_grad_()

    def f(x):
        return torch.autograd.grad((x * a).sum(), (a, b), allow_unused=True)

    f = case.fn(f)
    for i in range(3):
        yield f(case.x + i)


@program
def two_results_of_which_one_is_differentiated(case: Case) -> Seen:
    a, b = case.x.requires_grad_(), case.x.requires_grad_()
    f = case.fn(lambda x: ((x * a).sum(), (x * b).sum()))
    for i in range(3):
        first, _ = f(case.x + i)
        yield torch.autograd.grad(first, (a, b), allow_unused=True)


@program
def leaf_made_inside(case: Case) -> Seen:
    f = case.fn(lambda x: (x * 2).detach().requires_grad_())
    for i in range(3):
        leaf = f(case.x + i)
        leaf.square().sum().backward()
        yield leaf


@program
def hook_on_an_argument(case: Case) -> Seen:
    f, seen = case.fn(lambda x: x.square().sum()), []
    for i in range(3):
        x = (case.x + i).requires_grad_()
        x.register_hook(lambda g: seen.append(g.sum().item()) or g * 2)
        f(x).backward()
        yield x, seen


@program
def retained_gradient_of_a_result(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x))
    for i in range(3):
        m.zero_grad()
        y = f(case.x + i)
        y.retain_grad()
        y.square().sum().backward()
        yield y.grad, m


@program
def result_changed_in_place(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x))
    for i in range(3):
        m.zero_grad()
        y = f(case.x + i)
        y.mul_(2)
        y[0] = 0
        y.sum().backward()
        yield y, m


@program
def results_of_two_calls_in_one_loss(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x).square())
    for i in range(3):
        m.zero_grad()
        (f(case.x + i).sum() - 2 * f(-case.x).sum()).backward()
        yield m


@program(states=2)
def result_goes_into_the_next_call(case: Case) -> Seen:
    m = case.linear(3, 3)
    f = case.fn(lambda x: m(x).tanh())
    for i in range(3):
        m.zero_grad()
        f(f(f(case.x + i))).sum().backward()
        yield m


@program
def parameter_changed_between_forward_and_backward(case: Case) -> Seen:
    w = case.x.requires_grad_()
    f = case.fn(lambda x: (x * w.exp()).sum())
    for i in range(3):
        w.grad = None
        y = f(case.x + i)
        y.backward()
        with torch.no_grad():
            w.sub_(0.1 * w.grad)
        yield w, y


@program(states=2)
def frozen_and_thawed_parameters(case: Case) -> Seen:
    m = case.on(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)))
    f = case.fn(lambda x: m(x))
    for frozen in (False, True, True, False):
        m[0].requires_grad_(not frozen)
        m.zero_grad()
        f(case.x).sum().backward()
        yield m


@program
def function_with_its_own_backward(case: Case) -> Seen:
    class Clip(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, limit):
            ctx.limit = limit
            return x.clamp(-limit, limit)

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.limit, None

    m = case.linear()
    f = case.fn(lambda x: Clip.apply(m(x), 0.5))
    for i in range(3):
        m.zero_grad()
        f(case.x + i).sum().backward()
        yield m


@program
def integers_and_mixed_results(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: {"y": m(x), "top": m(x).argmax(), "n": 3, "mask": m(x) > 0})
    for i in range(3):
        m.zero_grad()
        made = f(case.x + i)
        made["y"].sum().backward()
        yield m, made["top"], made["mask"], made["n"]
