"""Gradients, functions and tuples that code tells apart by identity, and uses in no other way."""

import operator
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("told_apart", "jit rows")
Seen = Iterator[Any]


@program(states=3)
def gradient_is_the_last_one(case: Case) -> Seen:
    net: Any = case.linear()
    held = types.SimpleNamespace(last=None)

    def f(x):
        y = net(x).sum().detach()
        return y * 2 if net.weight.grad is held.last else y

    f = case.fn(f)
    for i in range(7):
        if i == 1:
            net.weight.grad = torch.ones_like(net.weight)
        if i == 2:
            held.last = net.weight.grad
        if i == 4:
            net.weight.grad = net.weight.grad.clone()
        if i == 6:
            net.weight.grad = held.last
        yield f(case.rows + i), net.weight.grad is held.last


@program(states=3)
def gradient_is_that_of_another(case: Case) -> Seen:
    a, b = case.linear(), case.linear()

    def f(x):
        return (a if a.weight.grad is b.weight.grad else b)(x).detach()

    f = case.fn(f)
    for i in range(6):
        if i == 1:
            a.weight.grad = torch.ones_like(a.weight)
            b.weight.grad = torch.ones_like(b.weight)
        if i == 2:
            b.weight.grad = a.weight.grad
        if i == 4:
            b.weight.grad = torch.zeros_like(b.weight)
        yield f(case.rows + i)


@program(states=2)
def gradient_is_an_argument(case: Case) -> Seen:
    net = case.linear()
    net.weight.grad = torch.ones_like(net.weight)
    other = torch.ones_like(net.weight)
    f = case.fn(lambda x, g: net(x).detach() * (2 if net.weight.grad is g else 1))
    for i in range(6):
        if i == 4:
            net.weight.grad = other
        yield f(case.rows + i, net.weight.grad if i % 2 == 0 else other)


@program(each_call=True)
def gradient_has_a_known_id(case: Case) -> Seen:
    net: Any = case.linear()
    seen = set()
    f = case.fn(lambda x: x * (2 if id(net.weight.grad) in seen else 1))
    before = None
    for i in range(6):
        if i == 1:
            before = net.weight.grad = torch.ones_like(net.weight)
        if i == 2:
            seen.add(id(net.weight.grad))
        if i == 4:
            net.weight.grad = net.weight.grad.clone()
        yield f(case.rows + i), net.weight.grad is before


@program(states=2)
def gradient_is_in_a_list(case: Case) -> Seen:
    net: Any = case.linear()
    kept = []
    net.weight.grad = torch.ones_like(net.weight)
    kept.append(net.weight.grad)
    f = case.fn(lambda x: x * 2 if any(net.weight.grad is one for one in kept) else x + 1)
    for i in range(6):
        if i == 3:
            net.weight.grad = net.weight.grad.clone()
        if i == 5:
            net.weight.grad = kept[0]
        yield f(case.rows + i)


def _made() -> Callable[[Any], Any]:
    return lambda x: torch.relu(x)


@program(states=2)
def function_among_arguments_is_a_key(case: Case) -> Seen:
    base = _made()
    known = {base: 10}
    f = case.fn(lambda fn, x: fn(x) * known.get(fn, 1))
    for fn in (base, _made(), _made(), base, _made()):
        yield f(fn, case.x - 2)


@program(each_call=True)
def function_among_arguments_is_kept(case: Case) -> Seen:
    held = types.SimpleNamespace(last=None)

    def f(fn, x):
        same = fn is held.last
        held.last = fn
        return fn(x) + (100 if same else 0)

    f = case.fn(f)
    base = _made()
    for fn in (base, base, _made(), base, base, _made()):
        yield f(fn, case.x), held.last is fn


class _Loss:
    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.kept = self.loss

    def loss(self, x: Any) -> Any:
        return x * self.scale


@program(states=2)
def method_among_arguments_is_the_kept_one(case: Case) -> Seen:
    one = _Loss(2.0)
    f = case.fn(lambda fn, x: fn(x) if fn is one.kept else fn(x) + 1)
    for fn in (one.kept, one.loss, one.loss, one.kept, one.loss):
        yield f(fn, case.x)


@program
def tuples_of_the_state_are_returned(case: Case) -> Seen:
    held = types.SimpleNamespace(sizes=(3, 4), pairs=((case.x, 3), [case.x + 1], (4, 5)))
    f = case.fn(lambda x: (held.sizes, held.pairs[0], held.pairs[2], x * held.sizes[0]))
    for _ in range(4):
        sizes, pair, last, y = f(case.x)
        yield y, pair, sizes is held.sizes, pair is held.pairs[0], last is held.pairs[2]


@program
def weak_reference_and_tensor_are_replaced_by_the_loop(case: Case) -> Seen:
    held: Any = types.SimpleNamespace(now=case.x)
    held.reference = weakref.ref(held.now)
    f = case.fn(lambda x: x + held.reference())
    for i in range(6):
        held.now = case.x * i
        held.reference = weakref.ref(held.now)
        yield f(case.x)


TELLING: dict[str, Callable[[Any, Any], Any]] = {
    "set": lambda a, b: len({a, b}),
    "dict": lambda a, b: len(dict.fromkeys((a, b))),
    "function": operator.is_,
}


@program(states=2)
def gradients_are_told_apart_without_is(case: Case) -> Seen:
    a: Any = case.linear()
    b: Any = case.linear()

    def f(told, x):
        g, h = a.weight.grad, b.weight.grad
        return x * told(g, h) + g.sum() + 2 * h.sum()

    told = [case.fn(lambda x, told=told: f(told, x)) for told in TELLING.values()]
    for i in range(6):
        a.weight.grad = torch.full_like(a.weight, i)
        b.weight.grad = a.weight.grad if i in (2, 4) else torch.zeros_like(b.weight)
        yield [f(case.rows) for f in told]


@program(states=5)
def argument_is_that_of_the_last_call_by_a_function(case: Case) -> Seen:
    held = types.SimpleNamespace(last=None)

    def f(x):
        known = operator.is_(held.last, x)
        held.last = x
        return x + 10 * known

    f, given = case.fn(f), (case.x, case.x + 1)
    for i in (0, 1, 1, 0, 0, 1):
        yield f(given[i]), held.last is given[i]
