"""Ordinary code around models: meters, histories, loggers, callbacks."""

import collections
import functools
import logging
from collections.abc import Iterator
from typing import Any

import torch

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("research", "jit rows trace")
Seen = Iterator[Any]


class Average:
    """A running mean of Python numbers."""

    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.total += value * n
        self.count += n

    @property
    def mean(self):
        return self.total / max(self.count, 1)


@program(each_call=True)
def running_mean_of_batch_sizes(case: Case) -> Seen:
    meter = Average()

    def f(x):
        meter.update(x.shape[0])
        return x.sum() / meter.mean

    f = case.fn(f)
    for n in (3, 2, 3, 1):
        yield f(case.x[:n]), meter


@program(each_call=True)
def running_mean_that_is_not_read(case: Case) -> Seen:
    meter = Average()

    def f(x):
        meter.update(x.numel() / 3)
        return x * 2

    f = case.fn(f)
    for i in range(4):
        yield f(case.x + i), meter, meter.mean


@program(modes="jit rows")
def running_mean_in_tensors(case: Case) -> Seen:
    totals = {"loss": case.tensor(0.0), "count": case.tensor(0.0)}
    m = case.linear()

    def f(x):
        loss = m(x).square().mean()
        totals["loss"] += loss.detach()
        totals["count"] += x.shape[0]
        return loss.detach()

    f = case.fn(f)
    for i in range(4):
        yield f(case.x + i), totals


@program(each_call=True)
def history_of_losses_in_a_dict_of_lists(case: Case) -> Seen:
    history: dict[str, list[Any]] = collections.defaultdict(list)
    m = case.linear()

    def f(x):
        loss = m(x).square().mean()
        history["loss"].append(loss.detach())
        history["rows"].append(x.shape[0])
        return loss

    f = case.fn(f)
    for i in range(4):
        yield f(case.x + i), history


@program(each_call=True)
def logger_that_counts_lines(case: Case) -> Seen:
    class Lines(logging.Handler):
        def __init__(self):
            super().__init__()
            self.seen: collections.Counter[str] = collections.Counter()

        def emit(self, record):
            self.seen[record.levelname] += 1

    logger, handler = logging.getLogger("tests.laws.counts"), Lines()
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    case.undo(logger.removeHandler, handler)

    def f(x):
        logger.warning("a batch of %d", x.shape[0])
        return x * 2

    f = case.fn(f)
    for i in range(3):
        yield f(case.x + i), handler.seen
    logger.setLevel(logging.ERROR)
    yield f(case.x), handler.seen


@program(states=2)
def warn_once(case: Case) -> Seen:
    warned: set[str] = set()

    @functools.wraps(print)
    def warn(text):
        if text not in warned:
            warned.add(text)
            return True
        return False

    f = case.fn(lambda x: x * (10 if warn("slow") else 1))
    for _ in range(3):
        yield f(case.x), warned
    warned.clear()
    yield f(case.x), warned


@program(each_call=True)
def writer_with_a_global_step(case: Case) -> Seen:
    class Writer:
        def __init__(self):
            self.step, self.scalars = 0, []

        def add(self, name, value):
            self.scalars.append((self.step, name, value))
            self.step += 1

    writer = Writer()

    def f(x):
        writer.add("numel", x.numel())
        return x + 1

    f = case.fn(f)
    for _ in range(4):
        yield f(case.x), writer


@program(states=3)
def early_stopping_flag(case: Case) -> Seen:
    class Stopper:
        def __init__(self, patience):
            self.bad, self.patience, self.stopped = 0, patience, False

        def update(self):
            self.bad = min(self.bad + 1, self.patience)
            self.stopped = self.bad >= self.patience

    stopper = Stopper(2)

    def f(x):
        if stopper.stopped:
            return x * 0
        stopper.update()
        return x

    f = case.fn(f)
    for _ in range(4):
        yield f(case.x), stopper
    stopper.__init__(2)
    yield f(case.x), stopper


@program(states=3, modes="jit rows")
def list_of_callbacks(case: Case) -> Seen:
    callbacks: list[Any] = [lambda x: x * 2]

    def f(x):
        for callback in callbacks:
            x = callback(x)
        return x

    f = case.fn(f)
    yield f(case.x)
    callbacks.append(lambda x: x + 1)
    yield f(case.x)
    callbacks.pop(0)
    yield f(case.x)


@program(states=3, modes="jit rows")
def events_with_handlers(case: Case) -> Seen:
    class Events:
        def __init__(self):
            self.handlers = collections.defaultdict(list)

        def on(self, name):
            def add(fn):
                self.handlers[name].append(fn)
                return fn

            return add

        def fire(self, name, x):
            for handler in self.handlers.get(name, ()):
                x = handler(x)
            return x

    events = Events()
    f = case.fn(lambda x: events.fire("end", events.fire("start", x) * 2))
    yield f(case.x)
    events.on("start")(lambda x: x + 1)
    yield f(case.x)
    events.on("end")(torch.neg)
    yield f(case.x)
    events.handlers.clear()
    yield f(case.x)


@program(states=2)
def callback_that_disables_itself(case: Case) -> Seen:
    class Once:
        def __init__(self):
            self.active = True

        def __call__(self, x):
            if not self.active:
                return x
            self.active = False
            return x * 100

    once = Once()
    f = case.fn(lambda x: once(x))
    for _ in range(3):
        yield f(case.x), once.active
    once.active = True
    yield f(case.x), once.active
