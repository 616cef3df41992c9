"""Python state around ordinary training steps: loggers, meters, averages, schedules, samplers."""

import collections
import contextlib
import copy
import dataclasses
import functools
import itertools
import logging
import math
import random
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("training", "jit rows")
Seen = Iterator[Any]


def _net(case: Case) -> nn.Module:
    return case.on(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))


def _loss(model: Any, x: Any) -> Any:
    return model(x).square().mean()


class Meter:
    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, value: Any, n: int = 1) -> None:
        self.total = self.total + value * n
        self.count += n

    @property
    def mean(self) -> Any:
        return self.total / max(self.count, 1)


@program(each_call=True)
def meter_that_counts_samples(case: Case) -> Seen:
    m, meter = _net(case), Meter()

    def step(x):
        loss = _loss(m, x)
        meter.update(loss.detach(), len(x))
        return loss

    step = case.fn(step)
    for i in range(4):
        yield step(case.rows + i), meter.total, meter.count, meter.mean


@program(each_call=True)
def meters_in_a_default_dict(case: Case) -> Seen:
    meters: Any = collections.defaultdict(Meter)

    def step(x):
        for name, value in (("mean", x.mean()), ("max", x.max())):
            meters[name].update(value)
        return {name: meter.mean for name, meter in meters.items()}

    step = case.fn(step)
    for i in range(4):
        yield step(case.x + i), {k: vars(v) for k, v in meters.items()}


@program
def exponential_average_of_a_copied_model(case: Case) -> Seen:
    m = _net(case)
    average = copy.deepcopy(m)
    sgd = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        sgd.zero_grad()
        loss = _loss(m, x)
        loss.backward()
        sgd.step()
        with torch.no_grad():
            for p, q in zip(average.parameters(), m.parameters(), strict=True):
                p.lerp_(q, 0.1)
        return loss

    step = case.fn(step)
    for i in range(4):
        yield step(case.rows + i), average


@program
def exponential_average_in_a_dict_of_tensors(case: Case) -> Seen:
    m = _net(case)
    shadow = {name: p.detach().clone() for name, p in m.named_parameters()}

    def step(x):
        with torch.no_grad():
            for name, p in m.named_parameters():
                p.add_(x.mean())
                shadow[name] = 0.9 * shadow[name] + 0.1 * p
        return m(x)

    step = case.fn(step)
    for i in range(4):
        yield step(case.rows + i), shadow


@program(states=3)
def average_with_a_decay_that_warms_up(case: Case) -> Seen:
    state = types.SimpleNamespace(step=0, value=case.x)

    def step(x):
        state.step = min(state.step + 1, 2)
        decay = min(0.9, (1 + state.step) / (10 + state.step))
        state.value = decay * state.value + (1 - decay) * x
        return state.value

    step = case.fn(step)
    for i in range(6):
        yield step(case.x + i), state.step


@program(states=2)
def early_stopping_with_patience(case: Case) -> Seen:
    @dataclasses.dataclass
    class Stopper:
        patience: int = 1
        bad: int = 0
        stopped: bool = False

    m, stopper = _net(case), Stopper()

    def step(x):
        if stopper.stopped:
            return None
        return _loss(m, x)

    step = case.fn(step)
    for i in range(3):
        yield step(case.rows + i)
    stopper.stopped = True
    for i in range(3):
        yield step(case.rows + i)


@program(states=4)  # the first of the three recurs after the optimizer's step
def gradients_accumulated_over_three_steps(case: Case) -> Seen:
    m = _net(case)
    sgd = torch.optim.SGD(m.parameters(), lr=0.1)
    state = {"micro": 0}

    def step(x):
        (_loss(m, x) / 3).backward()
        state["micro"] = (state["micro"] + 1) % 3
        if state["micro"] == 0:
            sgd.step()
            sgd.zero_grad(set_to_none=False)
        return state["micro"]

    for p in m.parameters():
        p.grad = torch.zeros_like(p)
    step = case.fn(step)
    for i in range(7):
        yield step(case.rows + i), m, [p.grad for p in m.parameters()]


@program(each_call=True)
def history_in_a_deque(case: Case) -> Seen:
    history: Any = collections.deque(maxlen=2)

    def step(x):
        history.append(x.sum())
        return sum(history) / len(history)

    step = case.fn(step)
    for i in range(5):
        yield step(case.x + i), list(history)


@program(each_call=True)
def a_logger_of_the_step(case: Case) -> Seen:
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger = logging.getLogger("tests.laws.training")
    handler = Lines()
    logger.addHandler(handler)
    case.undo(logger.removeHandler, handler)
    logger.setLevel(logging.INFO)
    state = types.SimpleNamespace(step=0)

    def step(x):
        state.step += 1
        logger.info("step %d of %s", state.step, tuple(x.shape))
        return x * state.step

    step = case.fn(step)
    for i in range(3):
        yield step(case.x + i), lines


@program(states=2)
def dataclass_config_with_a_property(case: Case) -> Seen:
    @dataclasses.dataclass
    class Config:
        base: float = 0.5
        factors: tuple[float, ...] = (1.0, 2.0)

        @property
        def scale(self) -> float:
            return self.base * math.prod(self.factors)

    config = Config()
    f = case.fn(lambda x: x * config.scale)
    for i in range(3):
        yield f(case.x + i)
    config.factors = (1.0, 3.0)
    for i in range(3):
        yield f(case.x + i)


@program(states=2)
def config_replaced_by_dataclasses_replace(case: Case) -> Seen:
    @dataclasses.dataclass(frozen=True)
    class Config:
        scale: float = 2.0
        name: str = "a"

    holder = types.SimpleNamespace(config=Config())
    f = case.fn(lambda x: x * holder.config.scale)
    for i in range(3):
        yield f(case.x + i)
    holder.config = dataclasses.replace(holder.config, scale=3.0)
    for i in range(3):
        yield f(case.x + i)


@program(states=2)
def nested_config_of_dicts_and_lists(case: Case) -> Seen:
    config = {"model": {"layers": [{"gain": 1.0}, {"gain": 2.0}]}, "unused": {"a": 1}}

    def f(x):
        for layer in config["model"]["layers"]:  # type: ignore[index]
            x = x * layer["gain"]
        return x

    f = case.fn(f)
    for i in range(3):
        yield f(case.x + i)
    config["model"]["layers"][1]["gain"] = 4.0  # type: ignore[index]
    for i in range(3):
        yield f(case.x + i)


@program(states=2)
def context_manager_that_restores(case: Case) -> Seen:
    state = types.SimpleNamespace(scale=1.0)

    @contextlib.contextmanager
    def scaled(value):
        before, state.scale = state.scale, value
        try:
            yield
        finally:
            state.scale = before

    def f(x):
        with scaled(5.0):
            inside = x * state.scale
        return inside + x * state.scale

    f = case.fn(f)
    for i in range(3):
        yield f(case.x + i), state.scale
    state.scale = 2.0
    for i in range(3):
        yield f(case.x + i), state.scale


@program(states=3)
def context_manager_class_with_depth(case: Case) -> Seen:
    class Depth:
        depth = 0

        def __enter__(self):
            Depth.depth += 1
            return self

        def __exit__(self, *exception):
            Depth.depth -= 1

    manager = Depth()

    def f(x):
        with manager, manager:
            return x * Depth.depth

    f = case.fn(f)
    for depth in (0, 0, 1, 1, 0, 2):
        Depth.depth = depth
        yield f(case.x), Depth.depth


@program(states=2)
def descriptor_that_validates(case: Case) -> Seen:
    class Positive:
        def __set_name__(self, owner, name):
            self.name = "_" + name

        def __get__(self, instance, owner):
            return self if instance is None else getattr(instance, self.name)

        def __set__(self, instance, value):
            if value <= 0:
                raise ValueError(value)
            setattr(instance, self.name, value)

    class Settings:
        scale = Positive()

        def __init__(self):
            self.scale = 2.0

    settings = Settings()
    f = case.fn(lambda x: x * settings.scale)
    for i in range(3):
        yield f(case.x + i)
    settings.scale = 3.0
    for i in range(3):
        yield f(case.x + i)


@program(each_call=True)
def descriptor_that_counts(case: Case) -> Seen:
    class Counted:
        reads = 0

        def __get__(self, instance, owner):
            Counted.reads += 1
            return Counted.reads

    class Holder:
        value = Counted()

    holder = Holder()
    f = case.fn(lambda x: x * holder.value)
    for i in range(4):
        yield f(case.x + i), Counted.reads


@program(states=4)
def cached_property_of_a_trainer(case: Case) -> Seen:
    class Trainer:
        def __init__(self, scale):
            self.scale = scale

        @functools.cached_property
        def factor(self):
            return self.scale * 2

    trainer = Trainer(1.0)
    f = case.fn(lambda x: x * trainer.factor)
    for i in range(3):
        yield f(case.x + i), vars(trainer)
    trainer.scale = 5.0  # the cache stays
    yield f(case.x), vars(trainer)
    del trainer.factor
    for i in range(3):
        yield f(case.x + i), vars(trainer)


@program(states=2)
def partial_with_keywords_replaced(case: Case) -> Seen:
    scale = functools.partial(lambda x, by, plus: x * by + plus, by=2.0, plus=1.0)
    holder = types.SimpleNamespace(scale=scale)
    f = case.fn(lambda x: holder.scale(x))
    for i in range(3):
        yield f(case.x + i)
    scale.keywords["by"] = 3.0
    for i in range(3):
        yield f(case.x + i)


@program(states=3)
def closures_made_by_a_factory(case: Case) -> Seen:
    def make(scale):
        def apply(x):
            return x * scale

        def change(value):
            nonlocal scale
            scale = value

        return apply, change

    apply, change = make(2.0)
    other, _ = make(7.0)
    holder = types.SimpleNamespace(apply=apply)
    f = case.fn(lambda x: holder.apply(x))
    for value in (2.0, 2.0, 3.0, 3.0):
        change(value)
        yield f(case.x)
    holder.apply = other
    yield f(case.x)
    yield f(case.x)


@program(each_call=True)
def generator_of_batches_inside(case: Case) -> Seen:
    batches = (case.x + i for i in range(10))
    f = case.fn(lambda: next(batches) * 2)
    for _ in range(4):
        yield f()


@program(each_call=True)
def generator_with_state_of_its_own(case: Case) -> Seen:
    def warmup():
        scale = 1.0
        while True:
            yield scale
            scale *= 0.5

    schedule = warmup()
    f = case.fn(lambda x: x * next(schedule))
    for i in range(4):
        yield f(case.x + i)


@program(each_call=True)
def cycle_over_scales(case: Case) -> Seen:
    scales = itertools.cycle([1.0, 2.0, 3.0])
    f = case.fn(lambda x: x * next(scales))
    for i in range(5):
        yield f(case.x + i)


@program(each_call=True)
def sampler_of_python(case: Case) -> Seen:
    generator = random.Random(0)

    class Sampler:
        def __init__(self, n):
            self.n, self.seen = n, []

        def draw(self):
            index = generator.randrange(self.n)
            self.seen.append(index)
            return index

    sampler = Sampler(3)
    f = case.fn(lambda x: x[sampler.draw()] * 2)
    for i in range(4):
        yield f(case.x + i), sampler.seen


@program
def scheduler_around_the_step(case: Case) -> Seen:
    m = _net(case)
    sgd = torch.optim.SGD(m.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(sgd, 0.5)

    def step(x):
        sgd.zero_grad()
        loss = _loss(m, x)
        loss.backward()
        sgd.step()
        return loss

    step = case.fn(step)
    for i in range(4):
        yield step(case.rows + i), m, scheduler.get_last_lr()
        scheduler.step()


@program
def step_that_reports_its_learning_rate(case: Case) -> Seen:
    m = _net(case)
    sgd = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        sgd.zero_grad()
        _loss(m, x).backward()
        sgd.step()
        return m(x)

    step = case.fn(step)
    for i in range(4):
        yield step(case.rows + i), sgd.param_groups[0]["lr"]
        sgd.param_groups[0]["lr"] *= 0.5


@program(each_call=True)
def learning_rate_read_by_the_users_code(case: Case) -> Seen:
    m = _net(case)
    sgd = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        sgd.zero_grad()
        _loss(m, x).backward()
        sgd.step()
        return x * sgd.param_groups[0]["lr"]

    step = case.fn(step)
    for i in range(4):
        yield step(case.rows + i), m
        sgd.param_groups[0]["lr"] *= 0.5


@program(each_call=True)
def a_group_is_added_between_steps(case: Case) -> Seen:
    m, extra = _net(case), case.tensor([1.0, 2.0, 3.0], requires_grad=True)
    sgd = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        sgd.zero_grad()
        loss = _loss(m, x * extra)
        loss.backward()
        sgd.step()
        return loss

    step = case.fn(step)
    for i in range(2):
        yield step(case.rows + i), extra
    sgd.add_param_group({"params": [extra], "lr": 0.5})
    for i in range(3):
        yield step(case.rows + i), extra


@program(states=3)  # the program checks if `.grad` exists before the first call
def frozen_layers(case: Case) -> Seen:
    m = _net(case)
    sgd = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        sgd.zero_grad()
        loss = _loss(m, x)
        loss.backward()
        sgd.step()
        return loss, [p.grad is None for p in m.parameters()]

    step = case.fn(step)
    for i in range(3):
        yield step(case.rows + i), m
    for p in m[0].parameters():  # type: ignore[index]
        p.requires_grad_(False)
    for i in range(3):
        yield step(case.rows + i), m
