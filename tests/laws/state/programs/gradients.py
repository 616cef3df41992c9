"""L6: gradients leave a call as they would eagerly."""

import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("gradients", "eager jit rows trace")
Seen = Iterator[Any]


@program
def auxiliary_loss_in_an_attribute(case: Case) -> Seen:
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.aux: Any = None

        def forward(self, x):
            y = self.linear(x)
            self.aux = y.square().sum()
            return y

    m = case.on(Layer())
    f = case.fn(m)
    for i in range(4):
        m.zero_grad()
        (f(case.x + i).sum() + 2 * m.aux).backward()
        yield m, m.aux


@program
def only_the_auxiliary_loss_is_used(case: Case) -> Seen:
    m, s = case.linear(), types.SimpleNamespace(aux=None)

    def f(x):
        y = m(x)
        s.aux = m.weight.square().sum()
        return y

    f = case.fn(f)
    for i in range(3):
        m.zero_grad()
        f(case.x + i)
        s.aux.backward()
        yield m


@program(each_call=True)
def auxiliary_losses_in_a_list(case: Case) -> Seen:
    m, losses = case.linear(), []

    def f(x):
        y = m(x)
        losses.append(y.mean())
        return y

    f = case.fn(f)
    for i in range(3):
        m.zero_grad()
        (f(case.x + i).sum() + sum(losses)).backward()
        losses.clear()
        yield m


@program
def auxiliary_losses_in_a_dict(case: Case) -> Seen:
    m, losses = case.linear(), {}

    def f(x):
        y = m(x)
        losses["square"] = y.square().mean()
        losses["l1"] = m.weight.abs().sum()
        return y

    f = case.fn(f)
    for i in range(4):
        m.zero_grad()
        (f(case.x + i).sum() + losses["square"] + 0.1 * losses["l1"]).backward()
        yield m, list(losses)


@program
def losses_in_a_dict_argument(case: Case) -> Seen:
    m = case.linear()

    def f(x, out):
        out["loss"] = m(x).square().sum()

    f = case.fn(f)
    for i in range(3):
        m.zero_grad()
        out: dict[str, Any] = {}
        f(case.x + i, out)
        out["loss"].backward()
        yield m


@program
def features_kept_by_a_hook(case: Case) -> Seen:
    m, kept = case.on(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))), {}
    m[1].register_forward_hook(lambda module, args, y: kept.update(features=y))
    f = case.fn(lambda x: m(x))
    for i in range(3):
        m.zero_grad()
        (f(case.x + i).sum() + kept["features"].square().sum()).backward()
        yield m


@program
def view_of_a_parameter_returned(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: (m(x), m.weight[0], m.weight.t()))
    for i in range(3):
        m.zero_grad()
        y, row, turned = f(case.x + i)
        (y.sum() + 2 * row.sum() + turned[0].sum()).backward()
        yield m, row, turned


@program
def parameter_returned_and_used(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: (m(x), m.weight))
    for i in range(3):
        m.zero_grad()
        y, w = f(case.x + i)
        (y.sum() + w.square().sum()).backward()
        yield m, w is m.weight


@program
def gradient_of_an_argument(case: Case) -> Seen:
    f = case.fn(lambda x: x.square().sum())
    for i in range(3):
        x = (case.x + i).requires_grad_()
        f(x).backward()
        yield x


@program
def gradient_of_an_argument_that_is_no_leaf(case: Case) -> Seen:
    w = case.x.requires_grad_()
    f = case.fn(lambda x: x.exp().sum())
    for i in range(3):
        w.grad = None
        f(w * (i + 1)).backward()
        yield w


@program(states=3)
def argument_that_sometimes_requires_grad(case: Case) -> Seen:
    f = case.fn(lambda x: x.square())
    yield f(case.x)
    x = case.x.requires_grad_()
    y = f(x)
    y.sum().backward()
    yield y, x
    with torch.no_grad():
        yield f(x)
    yield f(case.x)


@program
def unused_result_leaves_no_gradient(case: Case) -> Seen:
    a, b = case.linear(), case.linear()
    f = case.fn(lambda x: (a(x), b(x)))
    for i in range(3):
        a.zero_grad(), b.zero_grad()
        f(case.x + i)[i % 2].sum().backward()
        yield a, b


@program
def parameter_that_takes_no_part(case: Case) -> Seen:
    m = nn.ModuleDict({"used": nn.Linear(3, 2), "unused": nn.Linear(3, 2)}).to(case.device)
    f = case.fn(lambda x: m["used"](x))
    for i in range(3):
        m.zero_grad()
        f(case.x + i).sum().backward()
        yield m


@program
def detached_result(case: Case) -> Seen:
    m = case.linear()

    def f(x):
        y = m(x)
        return y, y.detach(), y.detach().requires_grad_()

    f = case.fn(f)
    for i in range(3):
        m.zero_grad()
        y, d, leaf = f(case.x + i)
        (y * d).sum().backward()
        leaf.sum().backward()
        yield y, d, leaf, m


@program
def result_computed_without_gradient(case: Case) -> Seen:
    m = case.linear()

    def f(x):
        with torch.no_grad():
            target = m(x)
        return F.mse_loss(m(x) * 2, target), target

    f = case.fn(f)
    for i in range(3):
        m.zero_grad()
        loss, target = f(case.x + i)
        loss.backward()
        yield loss, target, m
