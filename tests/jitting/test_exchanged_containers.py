"""Containers that the loop around a function replaces by others, with other numbers."""

import copy
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.optim import lr_scheduler

import calque
from calque.state.unread import Unread
from tests.laws.state.describe import describe, difference

pytestmark = pytest.mark.filterwarnings("ignore::calque.RetraceWarning")

PROGRAMS = {}


def program(traces):
    """A decorator of generators: they yield what to compare after each call."""

    def decorate(make):
        PROGRAMS[make.__name__] = make, traces
        return make

    return decorate


@program(2)
def a_list(x, jit):
    s = SimpleNamespace(rates=[1.0, 2.0])
    run = jit(lambda x: (x * s.rates[0], s.rates[1]))
    for i in range(6):
        yield run(x), list(s.rates)
        s.rates = [i * 0.5, i + 7.0]


@program(2)
def a_list_of_a_variable(x, jit):
    rates = [1.0]
    run = jit(lambda x: x * rates[0])
    for i in range(6):
        yield run(x)
        rates = [i * 0.5]


@program(2)
def an_object_in_an_object(x, jit):
    s = SimpleNamespace(a=SimpleNamespace(b=SimpleNamespace(rates=[3, 4.0]), scale=1.0))
    run = jit(lambda x: x * s.a.scale + s.a.b.rates[1])
    for _ in range(6):
        yield run(x)
        s.a = copy.deepcopy(s.a)
        s.a.scale += 1.0
        s.a.b.rates[1] *= 0.5


@program(3)
def a_dict_in_another_order(x, jit):
    s = SimpleNamespace(rates={"a": 1.0, "b": 2})
    run = jit(lambda x: x * s.rates["a"] + s.rates["b"])
    for i in range(7):
        yield run(x)
        s.rates = {"b": i, "a": i * 0.5} if i == 4 else {"a": i * 0.5, "b": i}


@program(3)
def a_number_that_changes_later(x, jit):
    s = SimpleNamespace(first=[1.0], second=[1.0], count=0)
    run = jit(lambda x: x * s.first[0] + s.second[0] * s.count)
    for i in range(6):
        yield run(x)
        s.first, s.second, s.count = [i * 0.5], [i * 2.0], i


@program(2)
def two_that_change_at_once(x, jit):
    s = SimpleNamespace(first=[1.0], second=[1.0], count=0)
    run = jit(lambda x: x * s.first[0] + s.second[0] * s.count)
    for i in range(6):
        yield run(x)
        s.first, s.second, s.count = [i * 0.5], [i * 2.0], i + 1


@program(2)
def a_list_that_the_function_changes(x, jit):
    s, known = SimpleNamespace(rates=[1.0]), []

    def change(x):
        s.rates[0] += 1.0
        return x * s.rates[0]

    run = jit(change)
    for i in range(8):
        known.append(s.rates)
        yield run(x), copy.deepcopy(known)
        if i % 2:
            s.rates = [i * 10.0]


@program(2)
def a_list_that_is_shared(x, jit):
    s = SimpleNamespace(a=[1.0])
    s.b = s.a

    def change(x):
        s.a[0] += 1.0
        return x * s.b[0]

    run = jit(change)
    for i in range(8):
        yield run(x), vars(s)
        s.a = s.b = [i * 0.5]


@program(9)
def a_list_that_is_sometimes_shared(x, jit):
    s = SimpleNamespace(a=[1.0])
    s.b = s.a

    def change(x):
        s.a[0] += 1.0
        return x * s.b[0]

    run = jit(change)
    for i in range(9):
        yield run(x), vars(s)
        s.a = [i * 0.5]
        s.b = s.a if i % 3 else [i * 0.5]


@program(8)
def a_list_whose_identity_counts(x, jit):
    first = [1.0]
    s = SimpleNamespace(rates=first)
    run = jit(lambda x: x * s.rates[0] + (1 if s.rates is first else 0))
    for i in range(7):
        yield run(x)
        s.rates = first if i == 3 else [i * 0.5]


@program(9)
def lists_that_change_places(x, jit):
    s = SimpleNamespace(a=[1.0], b=[2.0])

    def change(x):
        s.a[0] += 1.0
        return x * s.a[0] - s.b[0]

    run = jit(change)
    for _ in range(9):
        yield run(x), vars(s)
        s.a, s.b = s.b, s.a


@program(10)
def types_of_numbers(x, jit):
    s = SimpleNamespace(rates=[1.0])
    run = jit(lambda x: (x * s.rates[0], s.rates[0]))
    for value in (1.0, 1, 2, True, 2.5, False, 0.0, -0.0, 3, 4.5):
        s.rates = [value]
        yield run(x)


@program(3)
def a_cache_that_the_function_clears_and_fills(x, jit):
    w = torch.ones(2, device=x.device, requires_grad=True)
    s = SimpleNamespace(cache={}, factor=w)

    def step(x):
        before = s.cache["prior"].scale.detach() if s.cache else 0.0
        s.cache = {}
        s.cache["prior"] = SimpleNamespace(scale=s.factor.square().sum() * x.sum())
        return x * s.cache["prior"].scale + before

    run = jit(step)
    for i in range(6):
        yield run(x).detach(), s.cache["prior"].scale.detach()
        if i == 4:
            s.cache["prior"].scale = x.sum() * 3


def _all(make, device, jit):
    x = torch.tensor([0.5, -1.0], device=device)
    return [describe(found) for found in make(x, jit)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_container_may_be_replaced_by_one_with_other_numbers(name):
    make, traces = PROGRAMS[name]
    made = []

    def jit(fn):
        made.append(calque.jit(fn))
        return made[-1]

    expected = _all(make, "cpu", lambda fn: fn)
    for i, found in enumerate(_all(make, "jax", jit)):
        assert difference(found, expected[i]) is None, i
    assert len(made[0].history) <= traces, made[0].history


SCHEDULERS = {
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 8),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 / (epoch + 1)),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_rate_that_a_scheduler_tells_may_be_returned(name):
    def run(device, jit):
        weight = torch.nn.Parameter(torch.ones(2, device=device))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scheduler = SCHEDULERS[name](optimizer)

        def step(x):
            optimizer.zero_grad()
            (weight * x).square().sum().backward()
            optimizer.step()
            (rate,) = scheduler.get_last_lr()
            return weight.detach() * rate, {"rate": rate}

        step = jit(step)
        for i in range(6):
            yield describe(step(torch.tensor([0.5, 1.0], device=device) * i))
            scheduler.step()
        if jit is calque.jit:
            assert len(step.history) == 2, step.history

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*lr_scheduler")
        results, expected = list(run("jax", calque.jit)), list(run("cpu", lambda fn: fn))
    for i, found in enumerate(results):
        assert difference(found, expected[i]) is None, i


def test_unread_attributes_are_not_looked_for_where_what_is_read_was_replaced(monkeypatch):
    looked = []
    ignore = Unread.ignore
    monkeypatch.setattr(Unread, "ignore", lambda *args: looked.append(args) or ignore(*args))
    settings = SimpleNamespace(rates=[0.0])
    scaled = calque.jit(lambda x: x * settings.rates[0])
    one = torch.ones((), device="jax")
    for i in range(6):
        settings.rates = [float(i)]
        if i == 3:
            looked.clear()
        assert scaled(one).item() == i
    assert not looked
