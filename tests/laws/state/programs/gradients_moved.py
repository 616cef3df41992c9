"""Gradients that a function moves, returns or shares, without computing with them."""

import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("gradients", "jit rows")
Seen = Iterator[Any]


@program(states=2)
def gradient_returned_unused(case: Case) -> Seen:
    w: Any = nn.Parameter(case.x)
    f = case.fn(lambda x: (w.grad, x * 2))
    for i in range(6):
        w.grad = case.x * i if i not in (0, 4) else None
        r = f(case.x)
        yield r, w, r[0] is w.grad


@program
def gradient_returned_and_replaced(case: Case) -> Seen:
    w: Any = nn.Parameter(case.x)
    w.grad = case.x * 5

    def f(x):
        old = w.grad
        w.grad = x * 3
        return old

    f = case.fn(f)
    for i in range(5):
        yield f(case.x + i), w


@program(states=2)
def gradient_kept_in_a_dict_before_the_next(case: Case) -> Seen:
    w: Any = nn.Parameter(case.x)
    keep: Any = {}

    def f(x):
        keep["last"] = w.grad
        w.grad = None
        (w * x).square().sum().backward()

    f = case.fn(f)
    for i in range(6):
        f(case.x + i)
        yield w, keep


@program(each_call=True)
def gradient_moved_to_another_parameter(case: Case) -> Seen:
    w: Any = nn.Parameter(case.x)
    v: Any = nn.Parameter(case.x)

    def f(x):
        v.grad = w.grad
        w.grad = None
        (w * x).sum().backward()

    f = case.fn(f)
    for i in range(6):
        f(case.x + i)
        yield w, v


@program
def gradients_of_two_parameters_swapped(case: Case) -> Seen:
    w: Any = nn.Parameter(case.x)
    v: Any = nn.Parameter(case.x)
    w.grad, v.grad = case.x * 5, case.x * 2

    def f(x):
        v.grad, w.grad = w.grad, v.grad
        return x * 2

    f = case.fn(f)
    for i in range(6):
        a, b = w.grad, v.grad
        yield f(case.x + i), w, v, a is v.grad, b is w.grad
        if i == 3:
            w.grad = case.x * 7


@program
def views_of_a_gradient_that_is_not_read(case: Case) -> Seen:
    w: Any = nn.Parameter(case.rows)
    w.grad = case.rows * 5

    def f(x):
        g = w.grad
        made = [g.detach(), g[0], g.view(-1), g.t()]
        w.grad = None
        (w * x).sum().backward()
        return made

    f = case.fn(f)
    for i in range(5):
        yield f(case.x + i), w
        if i == 3:
            w.grad = case.rows


@program(each_call=True)
def gradient_that_is_an_argument_too(case: Case) -> Seen:
    w: Any = nn.Parameter(case.x)
    v: Any = nn.Parameter(case.x)
    w.grad = case.x * 5

    def f(g, computes):
        v.grad = g
        return w.grad * 2 if computes else w.grad

    f = case.fn(f)
    for computes in (False, True):
        for i in range(6):
            r = f(w.grad if i in (0, 1, 4) else case.x, computes)
            yield r, w, v, r is w.grad, r is v.grad
            if i == 3:
                w.grad = case.x


@program(each_call=True)
def gradient_passed_beside_its_parameter(case: Case) -> Seen:
    ps: list[Any] = [nn.Parameter(case.x * i) for i in range(3)]

    def f(p, g):
        with torch.no_grad():
            p.sub_(g + p.grad, alpha=0.1)
        return p.grad, g

    f = case.fn(f)
    for _ in range(2):
        for factor in (1, 7):
            for i, p in enumerate(ps):
                p.grad = case.x * i
                yield f(p, p.grad if factor == 1 else p.grad * factor), p


@program(each_call=True)
def part_of_a_gradient_as_an_argument(case: Case) -> Seen:
    w: Any = nn.Parameter(case.rows)

    def f(g, writes):
        if writes:
            g.mul_(2)
        return w.grad, w.grad + g, g

    f = case.fn(f)
    for writes in (False, True):
        w.grad = case.rows * 5
        for i in range(7):
            g = w.grad
            given = [g, g.detach(), g.view(2, 3), g[0], case.rows, case.x, g][i]
            yield f(given, writes), w


@program(each_call=True)
def gradient_in_a_dict_too(case: Case) -> Seen:
    w: Any = nn.Parameter(case.x)
    w.grad = case.x * 5
    keep = {"g": w.grad}
    f = case.fn(lambda x: (w.grad, keep["g"], x * 2))
    for i in range(7):
        yield f(case.x), w, keep
        if i == 1:
            w.grad = case.x
        if i == 3:
            keep["g"] = w.grad
        if i == 4:
            keep["g"] = case.x * 3


@program(each_call=True)
def gradient_exchanged_with_an_attribute(case: Case) -> Seen:
    w: Any = nn.Parameter(case.x)
    t: Any = types.SimpleNamespace()
    w.grad = t.prev = case.x * 5

    def f(x):
        a, b = t.prev, w.grad
        w.grad, t.prev = a, b
        return a, b, x * 2

    f = case.fn(f)
    for i in range(7):
        yield f(case.x), w, t.prev
        if i in (1, 4):
            t.prev = w.grad
        if i == 2:
            t.prev = case.x
        if i == 5:
            t.prev = w.grad.detach()


@program(each_call=True)
def gradient_shared_by_two_parameters(case: Case) -> Seen:
    w: Any = nn.Parameter(case.x)
    v: Any = nn.Parameter(case.x)
    w.grad = v.grad = case.x * 5

    def f(x):
        (w * v * x).sum().backward()
        return w.grad.sum(), v.grad, w.grad

    f = case.fn(f)
    for i in range(8):
        yield f(case.x), w, v
        if i in (1, 5):
            w.grad = v.grad.clone()
        if i == 2:
            w.grad = v.grad
        if i == 3:
            w.grad = v.grad = case.x
        if i == 6:
            w.grad = v.grad.detach()


@program(each_call=True)
def attributes_of_a_gradient(case: Case) -> Seen:
    w: Any = nn.Parameter(case.x)
    seen: Any = {}

    def f(x):
        if (g := w.grad) is not None:
            g.tag = getattr(g, "tag", 0) + 1
            seen["tag"] = g.tag
        (w * x).sum().backward()

    f = case.fn(f)
    for i in range(8):
        f(case.x)
        yield w, seen, vars(w.grad)
        if i == 3:
            w.grad = case.x
        if i == 5:
            w.grad.tag = 50
