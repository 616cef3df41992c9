"""Tensors reached through containers of any kind: their gradients, their flags, their memory."""

import collections
import contextvars
import functools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import calque
from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("reads", "jit rows")
Seen = Iterator[Any]
_variable: contextvars.ContextVar[Any] = contextvars.ContextVar("_variable")


class Registry:
    def __init__(self):
        self.entries = {}

    def __getitem__(self, key):
        return self.entries[key]


def _deep(value: Any) -> Any:
    nested = value
    for _ in range(20):
        nested = [nested]

    def innermost():
        found = nested
        while isinstance(found, list):
            found = found[0]
        return found

    return innermost


def _getters(p: Any) -> Iterator[Callable[[], Any]]:
    """Functions that find `p` in a container, each in another one."""
    queue = collections.deque([p])
    yield lambda: queue[0]
    _variable.set(p)
    yield _variable.get
    reference = weakref.ref(p)
    yield lambda: reference()
    user_dict = collections.UserDict(p=p)
    yield lambda: user_dict["p"]
    cached = functools.lru_cache(lambda: p)
    cached()
    yield lambda: cached()
    registry = Registry()
    registry.entries["p"] = p
    yield lambda: registry["p"]
    proxy = types.MappingProxyType({"p": p})
    yield lambda: proxy["p"]
    keyed = {p: 1}
    yield lambda: next(iter(keyed))
    members = weakref.WeakSet([p])
    yield lambda: next(iter(members))
    wide = [None] * 1500 + [p]
    yield lambda: wide[-1]
    yield _deep(p)


def _steps_of(case: Case, step: Any) -> Seen:
    """Calls with and without a gradient before, for each container."""
    for number in range(len(list(_getters(nn.Parameter(torch.ones(3)))))):
        p = nn.Parameter(case.x)
        getter = list(_getters(p))[number]
        f = case.fn(functools.partial(step, getter))
        for i in range(4):
            yield f(case.x + i), p, p.requires_grad
            p.requires_grad_(True)
            p.grad = None if i == 1 else torch.full_like(p, 5.0)


@program(states=2)
def gradients_dropped_of_tensors_in_any_container(case: Case) -> Seen:
    def step(getter, x):
        getter().grad = None
        return x * 2

    yield from _steps_of(case, step)


@program
def gradients_made_anew_of_tensors_in_any_container(case: Case) -> Seen:
    def step(getter, x):
        p = getter()
        p.grad = None
        (p * x).sum().backward()
        return x * 2

    yield from _steps_of(case, step)


@program(states=2)
def tensors_in_any_container_frozen(case: Case) -> Seen:
    def step(getter, x):
        getter().requires_grad_(False)
        return x * 2

    yield from _steps_of(case, step)


@program
def step_that_is_jitted_within_a_jitted_function(case: Case) -> Seen:
    m = case.linear()
    opt = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        opt.zero_grad()
        loss = m(x).square().sum()
        loss.backward()
        opt.step()
        return loss.detach()

    step = calque.jit(step) if case.mode in ("jit", "rows") else step
    f = case.fn(lambda x: step(x) + 1)
    for i in range(4):
        yield f(case.x + i), m


def _with_itself_and_another(case: Case, step: Any, first: int) -> Seen:
    for number in range(len(list(_getters(torch.ones(3))))):
        p = case.x
        getter = list(_getters(p))[number]
        f = case.fn(functools.partial(step, getter))
        for i in range(4):
            given = case.x + 1 if i % 2 == first else p
            made = f(given)
            yield made, made is p, p, given


@program(states=2)
def argument_that_is_in_any_container_is_written(case: Case) -> Seen:
    def step(getter, x):
        x.add_(1)
        return getter() * 2

    yield from _with_itself_and_another(case, step, 1)


@program(states=2)
def tensor_in_any_container_that_is_an_argument_is_written(case: Case) -> Seen:
    def step(getter, x):
        getter().mul_(2)
        return x * 2

    yield from _with_itself_and_another(case, step, 0)


@program(states=2)
def tensor_in_any_container_that_is_an_argument_is_returned(case: Case) -> Seen:
    yield from _with_itself_and_another(case, lambda getter, x: getter(), 1)


@program(states=2)
def view_of_an_argument_in_a_container(case: Case) -> Seen:
    def step(x):
        x.add_(1)
        return views[0] * 2

    p = case.x
    views = collections.deque([p[1:]])
    f = case.fn(step)
    for i in range(4):
        yield f(case.x if i == 2 else p), p


@program
def closure_over_a_part_of_an_argument(case: Case) -> Seen:
    def step(x):
        first = x[0]

        def inside():
            return (first + x).sum()

        return inside()

    f = case.fn(step)
    data = case.tensor([[float(i), i + 0.5] for i in range(8)])
    for i in range(4):
        yield f(data[2 * i : 2 * i + 2])


@program(states=2)
def tensor_held_weakly_is_not_kept_alive(case: Case) -> Seen:
    p = nn.Parameter(case.x)
    reference, members = weakref.ref(p), weakref.WeakSet([p])

    def step(x):
        return x * 2 if reference() is None else x * (1 + len(members))

    f = case.fn(step)
    yield f(case.x)
    yield f(case.x)
    del p
    yield f(case.x), reference() is None


@program(states=3)
def cpu_tensor_in_a_container_that_is_an_argument(case: Case) -> Seen:
    p = torch.tensor([1.0, 2.0, 3.0])
    queue = collections.deque([p])
    f = case.fn(lambda x, y: x * queue[0].to(x.device) + y.to(x.device))
    for i in range(4):
        yield f(case.x, p if i % 2 == 0 else torch.full((3,), float(i)))
