"""L5 and L6 again: gradients and hooks in less usual places."""

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


@program
def gradient_object_stays_when_accumulated(case: Case) -> Seen:
    m = case.linear()
    m(case.x).sum().backward()
    kept = m.weight.grad

    def f(x):
        m(x).sum().backward()

    f = case.fn(f)
    for i in range(3):
        f(case.x + i)
        yield m.weight.grad is kept, kept


@program
def gradient_object_stays_when_set_to_zero(case: Case) -> Seen:
    m = case.linear()
    m(case.x).sum().backward()
    kept = m.weight.grad

    def f(x):
        m.zero_grad(set_to_none=False)
        m(x).sum().backward()

    f = case.fn(f)
    for i in range(3):
        f(case.x + i)
        yield m.weight.grad is kept, kept


@program
def state_of_an_optimizer_stays_the_same_object(case: Case) -> Seen:
    m = case.linear()
    opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    m(case.x).sum().backward()
    opt.step()
    kept = opt.state[m.weight]["momentum_buffer"]

    def step(x):
        opt.zero_grad()
        m(x).square().sum().backward()
        opt.step()

    step = case.fn(step)
    for i in range(3):
        step(case.x + i)
        yield opt.state[m.weight]["momentum_buffer"] is kept, kept


@program
def backward_of_two_results_at_once(case: Case) -> Seen:
    m = _net(case)
    f = case.fn(lambda x: (m(x), m(x * 2)))
    for i in range(3):
        m.zero_grad()
        a, b = f(case.x + i)
        torch.autograd.backward([a, b], [torch.ones_like(a), torch.full_like(b, 2.0)])
        yield m


@program
def backward_into_chosen_inputs(case: Case) -> Seen:
    m = _net(case)
    f = case.fn(lambda x: m(x).sum())
    for i in range(3):
        m.zero_grad()
        f(case.x + i).backward(inputs=[m[0].weight])
        yield m


@program
def decorated_by_no_grad(case: Case) -> Seen:
    m = _net(case)
    f = case.fn(torch.no_grad()(lambda x: m(x)))
    for i in range(3):
        yield f(case.x + i)


@program
def gradients_enabled_inside_no_grad(case: Case) -> Seen:
    m = case.linear()

    def f(x):
        with torch.no_grad():
            a = m(x)
            with torch.enable_grad():
                b = m(x)
        return a, b

    f = case.fn(f)
    for i in range(3):
        m.zero_grad()
        a, b = f(case.x + i)
        b.sum().backward()
        yield a, m


@program(states=2)
def gradients_disabled_around_the_call(case: Case) -> Seen:
    m = case.linear()

    def f(x):
        with torch.enable_grad():
            return m(x)

    f = case.fn(f)
    for on in (True, False, False, True):
        m.zero_grad()
        with torch.set_grad_enabled(on):
            y = f(case.x)
        y.sum().backward()
        yield m


@program
def result_that_is_a_view_of_another(case: Case) -> Seen:
    m = case.linear()

    def f(x):
        y = m(x)
        return y, y[:1]

    f = case.fn(f)
    for i in range(3):
        m.zero_grad()
        y, part = f(case.x + i)
        (y.sum() + 3 * part.sum()).backward()
        yield m, part


@program
def results_of_tuple_where_one_has_no_gradient(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: (m(x), x * 2, m.weight.detach(), m(x).argmax()))
    for i in range(3):
        m.zero_grad()
        y, plain, weight, top = f(case.x + i)
        y.sum().backward()
        yield plain, weight, top, m


@program
def gradient_of_an_argument_within_a_dict(case: Case) -> Seen:
    f = case.fn(lambda batch: (batch["x"] * batch["w"][0]).sum())
    for i in range(3):
        batch = {"x": case.x + i, "w": [case.x.requires_grad_()]}
        f(batch).backward()
        yield batch


@program
def gradient_of_an_argument_written_in_place(case: Case) -> Seen:
    w = case.x.requires_grad_()

    def f(x):
        x.mul_(2)
        return x.sum()

    f = case.fn(f)
    for i in range(3):
        w.grad = None
        x = w * (i + 1)
        y = f(x)
        (y + x.square().sum()).backward()
        yield w


@program
def state_written_with_a_gradient(case: Case) -> Seen:
    m, memory = case.linear(3, 3), case.x

    def f(x):
        memory.copy_(m(x))
        return memory.sum()

    f = case.fn(f)
    for i in range(3):
        m.zero_grad()
        memory.detach_()
        f(case.x + i)
        memory.square().sum().backward()
        yield m


@program(states=2)
def hidden_state_with_its_graph(case: Case) -> Seen:
    m, s = case.linear(3, 3), types.SimpleNamespace(h=None)

    def f(x):
        s.h = m(x if s.h is None else x + s.h).tanh()
        return s.h.sum()

    f = case.fn(f)
    for i in range(2):
        m.zero_grad()
        s.h = None
        loss = f(case.x + i) + f(case.x) + f(case.x * 0.5)
        loss.backward()
        yield m
    yield s.h.shape


@program
def functional_gradient_inside(case: Case) -> Seen:
    w = case.x
    f = case.fn(lambda x: torch.func.grad(lambda w: (w * x).square().sum())(w))
    for i in range(3):
        yield f(case.x + i)
        w.add_(1)


@program
def functional_call_with_other_weights(case: Case) -> Seen:
    m = case.linear()
    other = {n: (p * 2).detach().requires_grad_() for n, p in m.named_parameters()}
    f = case.fn(lambda x: torch.func.functional_call(m, other, (x,)))
    for i in range(3):
        m.zero_grad()
        for p in other.values():
            p.grad = None
        f(case.x + i).sum().backward()
        yield m, other


@program
def mapped_over_a_batch_inside(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: torch.vmap(m)(x).sum())
    for i in range(3):
        m.zero_grad()
        f(case.rows + i).backward()
        yield m
