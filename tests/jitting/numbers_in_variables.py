"""Programs that compute with Python numbers that change between calls.

A program is a function of a device and of what compiles a function. It returns the function to
call, a function that makes a change before some calls, and a function that returns the state.
"""

import datetime
import math
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

COMPILED = {}
TRACED = {}


def compiled(traces=2):
    """A decorator of programs that are compiled, with at most so many traces."""

    def decorate(make):
        COMPILED[make.__name__] = make, traces
        return make

    return decorate


def traced(make):
    """A decorator of programs that need the numbers themselves."""
    TRACED[make.__name__] = make
    return make


def count_of(s, i):
    """The change of most programs."""
    if i in (4, 6):
        s.n += 10


class Training:
    """A model and its optimizer, with a count of the steps."""

    def __init__(self, device):
        torch.manual_seed(0)
        self.model = nn.Linear(2, 1).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.n, self.log = 0, []

    def step(self, x, weight=1.0):
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean() * weight
        loss.backward()
        self.optimizer.step()
        self.n += 1
        return loss.detach()

    def state(self):
        groups = [
            {k: v for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups
        ]
        return self.n, self.log, groups, list(self.model.parameters())


def training(run, traces=2):
    """Make a program of a function of a `Training` and the input."""

    def make(device, jit):
        s = Training(device)
        return jit(partial_of(run, s)), partial(count_of, s), s.state

    make.__name__ = run.__name__
    compiled(traces)(make)


def partial_of(run, s):
    def step(x):
        return run(s, x)

    return step


# Training -----------------------------------------------------------------------------------------


def cosine_after_the_step(s, x):
    loss = s.step(x)
    for group in s.optimizer.param_groups:
        group["lr"] = 0.05 * (1 + math.cos(math.pi * s.n / 100))
    return loss


def warmup_before_the_step(s, x):
    for group in s.optimizer.param_groups:
        group["lr"] = 0.1 * (s.n + 1) / 5 if s.n < 3 else 0.1 / math.sqrt(s.n)
    return s.step(x)


def counted_by_a_metric(s, x):
    """As torchmetrics' `Metric.update`, which explains some errors."""
    loss = s.step(x)
    for group in s.optimizer.param_groups:
        group["lr"] = 0.1 / (1 + s.n)
    try:
        s.log.append(s.n)
    except RuntimeError as error:
        if "Expected all tensors" in str(error):
            raise RuntimeError("move the metric to the device") from error
        raise error
    return loss


def decay(s, x):
    loss = s.step(x)
    for group in s.optimizer.param_groups:
        group["lr"] *= 0.9
        group["weight_decay"] = group["lr"] * 0.1
    return loss


def annealed_loss(s, x):
    return s.step(x, 1 / (1 + s.n))


def every_third_step(s, x):
    loss = s.step(x)
    if s.n % 3 == 0:
        s.log.append({"step": s.n, "loss": loss, "epoch": s.n / 10})
    return loss


for run, traces in (
    (cosine_after_the_step, 2),
    (warmup_before_the_step, 4),
    (counted_by_a_metric, 2),
    (decay, 2),
    (annealed_loss, 2),
    (every_third_step, 3),
):
    training(run, traces)


# Records ------------------------------------------------------------------------------------------


@dataclass
class Record:
    step: int
    value: Any


class Row(NamedTuple):
    step: int
    value: Any


def logging(make):
    def made(device, jit):
        s = SimpleNamespace(n=0, log=[])

        def step(x):
            s.log.append(make(s.n, x.sum()))
            s.n += 1

        return jit(step), partial(count_of, s), lambda: (s.n, s.log)

    return made


COMPILED |= {
    "log " + name: (logging(make), 2)
    for name, make in {
        "of records": Record,
        "of named tuples": Row,
        "of objects": lambda n, value: SimpleNamespace(step=n, value=value),
        "of epochs": lambda n, value: (n // 10, n % 10, n / 10, value),
    }.items()
}


# State --------------------------------------------------------------------------------------------


def stating(run, traces=2, **others):
    """Make a program of a function of some state with a count, and the input."""

    def make(device, jit):
        s = SimpleNamespace(n=0, **others)
        return jit(partial_of(run, s)), partial(count_of, s), lambda: vars(s)

    make.__name__ = run.__name__
    compiled(traces)(make)


def results(s, x):
    s.n += 1
    return {"n": s.n, "before": [s.n - 1, (s.n / 2,)], "x": x}


def a_constant_at_the_end(s, x):
    y = x * (s.n + 1)
    s.n = 0 if s.n >= 2 else s.n + 1
    return y


def two_that_depend_on_each_other(s, x):
    s.n, s.other = s.other, s.n + s.other
    return x * s.n / s.other


def functions_that_exist(s, x):
    s.n += 1
    s.other = round(math.exp(-s.n) + math.floor(s.n / 3), 4)
    return x * math.log1p(s.n)


def types_of_powers(s, x):
    s.n += 1
    s.other = 2 ** (3 - s.n)
    return x


stating(results, 3)
stating(a_constant_at_the_end, 6)
stating(two_that_depend_on_each_other, 3, other=1)
stating(functions_that_exist, other=0.0)
stating(types_of_powers, 6, other=0)


@compiled()
def a_nonlocal_variable(device, jit):
    n, rate = 0, 0.0

    def step(x):
        nonlocal n, rate
        n += 1
        rate = 0.5**n
        return x * rate

    def change(i):
        nonlocal n
        n += 3 if i == 4 else 0

    return jit(step), change, lambda: (n, rate)


@compiled()
def slots(device, jit):
    class Slotted:
        __slots__ = ("n", "rate")

    s = Slotted()
    s.n, s.rate = 0, 0.0

    def step(x):
        s.n += 1
        s.rate = math.sin(s.n)
        return x * s.rate

    return jit(step), partial(count_of, s), lambda: (s.n, s.rate)


@compiled(3)
def items_of_a_list(device, jit):
    counts = [0, 0.5]

    def step(x):
        counts[0] += 1
        counts[1] *= 0.9
        return x * counts[1] / counts[0]

    def change(i):
        if i == 4:
            counts[0] = 10
        if i == 6:
            counts.append(1)

    return jit(step), change, lambda: counts


@compiled()
def items_that_move(device, jit):
    counts = [1, 2, 4]

    def step(x):
        counts.append(counts.pop(0) + 1)
        return x * counts[0]

    return jit(step), lambda i: None, lambda: counts


@compiled()
def a_dict_in_another_order(device, jit):
    found = {"a": 1, "n": 0, "z": 2}

    def step(x):
        y = x * (found["n"] / 3)
        found["a"] = found.pop("a")
        return y

    return jit(step), lambda i: found.update(n=i), lambda: (found, list(found))


@compiled()
def gradients_of_results(device, jit):
    s = SimpleNamespace(n=0)
    weight = torch.ones(2, device=device, requires_grad=True)

    def step(x):
        s.n += 1
        return (x * weight * (s.n / 3)).pow(3).sum() * (s.n / 2)

    step = jit(step)

    def call(x):
        (gradient,) = torch.autograd.grad(step(x).mean(), weight, create_graph=True)
        return gradient.detach(), torch.autograd.grad(gradient.sum(), weight)

    return call, partial(count_of, s), lambda: s.n


# Programs that need the numbers -------------------------------------------------------------------


def needing(run):
    def make(device, jit):
        s = SimpleNamespace(n=0, other=None)
        return jit(partial_of(run, s)), partial(count_of, s), lambda: vars(s)

    TRACED[run.__name__] = make


def a_text(s, x):
    s.n += 1
    s.other = f"step {s.n}"
    return x


def a_type(s, x):
    s.n += 1
    return x * 2 if type(s.n) is int else x * 3


def an_error_that_is_raised_again(s, x):
    s.n += 1
    try:
        return x * datetime.timedelta(seconds=s.n).total_seconds()
    except TypeError as error:
        raise ValueError(f"no time: {s.n}") from error


def an_error_that_becomes_another(s, x):
    try:
        return an_error_that_is_raised_again(s, x)
    except ValueError:
        return x * -1


def an_error_that_is_handled(s, x):
    s.n += 1
    try:
        seconds = datetime.timedelta(seconds=s.n).total_seconds()
    except TypeError:
        seconds = -1.0
    return x * seconds


def a_division_by_zero(s, x):
    s.n += 1
    try:
        return x / (4 - s.n) * (1 / (4 - s.n))
    except ZeroDivisionError:
        return x


def numbers_of_numpy(s, x):
    s.n += 1
    s.other = np.float64(0.5) * s.n, np.cos(s.n), np.array([s.n])
    return x


def integers_of_tensors(s, x):
    s.n += 1
    return torch.ones(2, dtype=torch.long, device=x.device) * s.n


def an_index(s, x):
    s.n += 1
    return x[s.n % 2]


def long_formulas(s, x):
    s.n += 1
    found = s.n / 100
    for _ in range(40):
        found = found * found + found
    s.other = found
    return x


def a_key(s, x):
    s.n += 1
    return x * {0: 2, 1: 3}.get(s.n % 3, 4)


for run in (
    *(an_error_that_is_raised_again, an_error_that_becomes_another),
    *(a_text, a_type, an_error_that_is_handled, a_division_by_zero, numbers_of_numpy),
    *(integers_of_tensors, an_index, long_formulas, a_key),
):
    needing(run)
