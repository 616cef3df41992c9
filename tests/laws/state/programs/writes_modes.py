"""L2: caches, errors, logs, modes of PyTorch and of modules that a call changes."""

import collections
import contextvars
import logging
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("writes", "eager jit rows trace")
Seen = Iterator[Any]


@program(states=1)
def moving_averages_in_a_dict(case: Case) -> Seen:
    averages = {"a": case.x, "b": case.x * 2}

    def f(x):
        for name, value in averages.items():
            averages[name] = 0.5 * value + 0.5 * x
        return averages["a"].sum()

    f = case.fn(f)
    for i in range(4):
        yield f(case.x + i), averages


@program(states=4)
def cache_by_shape(case: Case) -> Seen:
    masks: dict[int, torch.Tensor] = {}

    def f(x):
        n = x.shape[0]
        if n not in masks:
            masks[n] = torch.ones(n, device=x.device).cumsum(0)
        return x * masks[n]

    f = case.fn(f)
    first = f(case.x)
    kept = masks[3]
    yield first, masks
    yield f(case.x), masks[3] is kept
    yield f(case.x[:2]), sorted(masks)
    yield f(case.x), masks[3] is kept


@program(states=2)
def exception_stored(case: Case) -> Seen:
    s = types.SimpleNamespace(errors=0, last=None)

    def f(x):
        try:
            x.view(2, 2)
        except RuntimeError as error:
            s.last = type(error).__name__
            s.errors = 1
        return x * s.errors

    f = case.fn(f)
    yield f(case.x), s
    s.errors = 0
    yield f(case.x), s
    yield f(case.x), s


class _Collecting(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@program(each_call=True)
def logging_handler_that_collects(case: Case) -> Seen:
    logger, handler = logging.getLogger("tests.laws.collecting"), _Collecting()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    case.undo(logger.removeHandler, handler)

    def f(x):
        logger.info("shape %s", tuple(x.shape))
        return x * 2

    f = case.fn(f)
    for _ in range(4):
        yield f(case.x), handler.lines


@program(states=2, modes="eager jit rows")
def training_switched_in_forward(case: Case) -> Seen:
    m = nn.Sequential(nn.Dropout(0.0), nn.ReLU())

    def f(x):
        m.train(not m.training)
        return x * (2 if m.training else 1)

    f = case.fn(f)
    for _ in range(5):
        yield f(case.x), m


@program(states=2)
def submodule_switched_and_back(case: Case) -> Seen:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x):
            was = self.norm.training
            self.norm.train()
            y = self.norm(x)
            self.norm.train(was)
            return y

    m = case.on(Net()).eval()
    f = case.fn(m)
    yield f(case.rows), m
    yield f(case.rows + 1), m
    m.train()
    yield f(case.rows), m


@program(states=2)
def gradient_mode_left_changed(case: Case) -> Seen:
    w = case.x.requires_grad_()

    def f(x):
        y = x * w
        torch.set_grad_enabled(False)
        return y

    f = case.fn(f)
    for _ in range(3):
        yield f(case.x), torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    yield f(case.x), torch.is_grad_enabled()


@program(states=2)
def default_dtype_left_changed(case: Case) -> Seen:
    def f(x):
        y = x + torch.ones(3, device=x.device)
        torch.set_default_dtype(torch.float64)
        return y

    f = case.fn(f)
    yield f(case.x), torch.get_default_dtype()
    yield f(case.x), torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield f(case.x), torch.get_default_dtype()


@program(states=3)
def context_variable_set(case: Case) -> Seen:
    turn: contextvars.ContextVar[int] = contextvars.ContextVar("turn", default=0)

    def f(x):
        turn.set(1 - turn.get())
        return x * turn.get()

    f = case.fn(f)
    for _ in range(5):
        yield f(case.x), turn.get()


@program(states=2)
def array_of_numpy_written(case: Case) -> Seen:
    table = np.zeros(3)

    def f(x):
        table[0] = 1 - table[0]
        return x * float(table[0])

    f = case.fn(f)
    for _ in range(5):
        yield f(case.x), table


_CACHE: dict[str, float] = {}


@program(states=2)
def cache_of_the_module(case: Case) -> Seen:
    _CACHE.clear()

    def f(x):
        if "gain" not in _CACHE:
            _CACHE["gain"] = 2.0
            return x
        return x * _CACHE["gain"]

    f = case.fn(f)
    for _ in range(3):
        yield f(case.x), _CACHE
    _CACHE.clear()
    yield f(case.x), _CACHE


@program(states=2)
def parameter_frozen_after_the_first_call(case: Case) -> Seen:
    m = case.linear()

    def f(x):
        y = m(x).sum()
        m.bias.requires_grad_(False)
        return y

    f = case.fn(f)
    for _ in range(3):
        f(case.x).backward()
        yield m
    m.bias.requires_grad_(True)
    f(case.x).backward()
    yield m


@program(states=3)
def history_of_a_module(case: Case) -> Seen:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.history = collections.deque(maxlen=2)

        def forward(self, x):
            y = self.linear(x)
            self.history.append(y.detach().mean())
            return y

    m = case.on(Net())
    f = case.fn(m)
    for i in range(5):
        yield f(case.x + i), m.history
