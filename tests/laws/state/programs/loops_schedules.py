"""Python state of whole training loops: schedules, curricula, scaling, stopping, averaging."""

import collections
import contextvars
import dataclasses
import enum
import functools
import math
import operator
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("loops", "jit rows")
Seen = Iterator[Any]


def _net(case: Case) -> nn.Module:
    return case.on(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))


def _weights(model: nn.Module) -> list[Any]:
    return [p.detach().clone() for p in model.parameters()]


class Ema:
    """An average of weights with its own warm-up, which counts its updates."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self.shadow = {k: v.detach().clone() for k, v in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, value in model.named_parameters():
            self.shadow[name].lerp_(value, 1 - decay)


@program(each_call=True)
def average_with_a_warm_up_of_its_decay(case: Case) -> Seen:
    m = _net(case)
    ema, sgd = Ema(m, 0.9), torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        m(x).square().mean().backward()
        sgd.step()
        sgd.zero_grad()
        ema.update(m)

    step = case.fn(step)
    for i in range(4):
        step(case.rows + i)
        yield dict(ema.shadow), ema.updates


@program(states=3)
def average_whose_decay_is_changed(case: Case) -> Seen:
    m = _net(case)
    ema = types.SimpleNamespace(decay=0.5, shadow=_weights(m))

    def step(x):
        with torch.no_grad():
            for kept, p in zip(ema.shadow, m.parameters()):
                p.add_(x.mean())
                kept.mul_(ema.decay).add_(p, alpha=1 - ema.decay)

    step = case.fn(step)
    for decay in (0.5, 0.9, 0.99):
        ema.decay = decay
        step(case.rows)
        yield list(ema.shadow)


class Stage(enum.IntEnum):
    SHORT, LONG = 2, 3


@dataclasses.dataclass
class Curriculum:
    stages: tuple[Stage, ...] = (Stage.SHORT, Stage.LONG)
    at: int = 0
    history: list[int] = dataclasses.field(default_factory=list)

    @property
    def length(self) -> int:
        return int(self.stages[self.at])

    def advance(self, loss: float) -> None:
        self.history.append(self.length)
        self.at = min(self.at + (loss < 100), len(self.stages) - 1)


@program(states=2)
def curriculum_that_the_loop_advances(case: Case) -> Seen:
    m, course = _net(case), Curriculum()

    def step(x):
        taken = torch.zeros_like(x)
        taken[:, : course.length] = x[:, : course.length]
        return m(taken).square().mean()

    step = case.fn(step)
    for i in range(4):
        loss = step(case.rows + i)
        yield loss
        course.advance(loss.item())
        yield course.history


@program(each_call=True)
def curriculum_that_the_step_advances(case: Case) -> Seen:
    course = Curriculum()

    def step(x):
        length = course.length
        course.advance(0.0)
        return x[:, :length].sum()

    step = case.fn(step)
    for i in range(4):
        yield step(case.rows + i), course.at, list(course.history)


class DynamicScale:
    """Loss scaling as of mixed precision, decided outside of the step."""

    def __init__(self) -> None:
        self.scale, self.good = 8.0, 0

    def update(self, overflowed: bool) -> None:
        if overflowed:
            self.scale, self.good = self.scale / 2, 0
        else:
            self.good += 1
            if self.good == 2:
                self.scale, self.good = self.scale * 2, 0


@program(states=2)
def dynamic_scale_of_the_loss(case: Case) -> Seen:
    m, scaler = _net(case), DynamicScale()
    sgd = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        sgd.zero_grad()
        (m(x).square().mean() * scaler.scale).backward()
        for p in m.parameters():
            p.grad.div_(scaler.scale)
        found = torch.stack([p.grad.abs().max() for p in m.parameters()]).max()
        sgd.step()
        return found

    step = case.fn(step)
    for _ in range(4):
        found = step(case.rows)
        scaler.update(found.item() > 1e6)
        yield found, scaler.scale, _weights(m)


@program(states=2)
def accumulation_of_gradients_by_a_flag(case: Case) -> Seen:
    m = _net(case)
    sgd = torch.optim.SGD(m.parameters(), lr=0.1)
    loop = types.SimpleNamespace(sync=False)

    def step(x):
        (m(x).square().mean() / 2).backward()
        if loop.sync:
            sgd.step()
            sgd.zero_grad()

    step = case.fn(step)
    for i in range(6):
        loop.sync = i % 2 == 1
        step(case.rows + i)
        yield _weights(m), [p.grad for p in m.parameters()]


@program(each_call=True)
def accumulation_of_gradients_by_its_own_counter(case: Case) -> Seen:
    m = _net(case)
    sgd = torch.optim.SGD(m.parameters(), lr=0.1)
    micro = 0

    def step(x):
        nonlocal micro
        micro = (micro + 1) % 2
        (m(x).square().mean() / 2).backward()
        if micro == 0:
            sgd.step()
            sgd.zero_grad(set_to_none=False)

    step = case.fn(step)
    for i in range(5):
        step(case.rows + i)
        yield _weights(m), micro, [p.grad for p in m.parameters()]


class EarlyStopping:
    def __init__(self, patience: int) -> None:
        self.best, self.bad, self.patience, self.stop = math.inf, 0, patience, False

    def __call__(self, loss: float) -> bool:
        if loss < self.best:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
        self.stop = self.bad >= self.patience
        return self.stop


@program(states=2)
def early_stopping_read_in_the_step(case: Case) -> Seen:
    m, stopper = _net(case), EarlyStopping(1)

    def step(x):
        loss = m(x).square().mean()
        return loss * 0 if stopper.stop else loss

    step = case.fn(step)
    for value in (3.0, 2.0, 2.5, 1.0):
        yield step(case.rows), stopper.bad
        stopper(value)


@program(states=2)
def swapped_weights_for_evaluation(case: Case) -> Seen:
    m = _net(case)
    averaged = torch.optim.swa_utils.AveragedModel(m)
    chosen = {"model": m}

    def evaluate(x):
        return chosen["model"](x)

    evaluate = case.fn(evaluate)
    for i in range(4):
        with torch.no_grad():
            m[0].weight.add_(0.5)
        averaged.update_parameters(m)
        chosen["model"] = averaged if i % 2 else m
        yield evaluate(case.rows), averaged.n_averaged


@program(each_call=True)
def average_of_swa_updated_in_the_step(case: Case) -> Seen:
    m = _net(case)
    averaged = case.on(torch.optim.swa_utils.AveragedModel(m))
    sgd = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        m(x).square().mean().backward()
        sgd.step()
        sgd.zero_grad()
        averaged.update_parameters(m)

    step = case.fn(step)
    for i in range(4):
        step(case.rows + i)
        yield averaged.n_averaged, _weights(averaged)


@program
def rate_given_by_a_schedule_of_lambdas(case: Case) -> Seen:
    m = _net(case)
    sgd = torch.optim.SGD(m.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(sgd, lambda n: 1 / (1 + n))

    def step(x):
        sgd.zero_grad()
        m(x).square().mean().backward()
        sgd.step()

    step = case.fn(step)
    for i in range(4):
        step(case.rows + i)
        schedule.step()
        yield _weights(m), schedule.get_last_lr()


@program(states=4)
def rate_and_decay_computed_by_the_step(case: Case) -> Seen:
    p = case.tensor([1.0, 2.0, 3.0])
    clock = types.SimpleNamespace(t=0)

    def step(x):
        rate = 0.1 * 0.5 * (1 + math.cos(math.pi * clock.t / 10))
        return p - rate * x

    step = case.fn(step)
    for t in range(4):
        clock.t = t
        yield step(case.x)


_temperature: contextvars.ContextVar[float] = contextvars.ContextVar("temperature", default=1.0)


@program(states=2)
def temperature_of_a_context(case: Case) -> Seen:
    def sample(x):
        return torch.softmax(x / _temperature.get(), -1)

    sample = case.fn(sample)
    yield sample(case.x)
    token = _temperature.set(2.0)
    yield sample(case.x)
    _temperature.reset(token)
    yield sample(case.x)


@program(each_call=True)
def temperature_set_by_the_step(case: Case) -> Seen:
    case.undo(_temperature.set, 1.0)

    def sample(x):
        _temperature.set(_temperature.get() * 0.5)
        return x * _temperature.get()

    sample = case.fn(sample)
    for _ in range(3):
        yield sample(case.x), _temperature.get()


@dataclasses.dataclass
class OptimizerConfig:
    lr: float = 0.1
    nesterov: bool = False


@dataclasses.dataclass
class Config:
    optim: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    tags: dict[str, Any] = dataclasses.field(default_factory=dict)


@program(states=3)
def nested_data_classes_replaced(case: Case) -> Seen:
    config = Config()

    def step(x):
        rate = config.optim.lr * (2 if config.optim.nesterov else 1)
        return x * rate + len(config.tags)

    step = case.fn(step)
    yield step(case.x)
    config.optim = dataclasses.replace(config.optim, nesterov=True)
    yield step(case.x)
    config.tags["run"] = 1
    yield step(case.x)


class Callback:
    def on_step(self, loop: Any, loss: Any) -> Any:
        return loss


class Scaling(Callback):
    def __init__(self, by: float) -> None:
        self.by = by

    def on_step(self, loop: Any, loss: Any) -> Any:
        return loss * self.by


class Counting(Callback):
    def on_step(self, loop: Any, loss: Any) -> Any:
        loop.steps += 1
        return loss


class Loop:
    def __init__(self, model: Any, callbacks: list[Callback]) -> None:
        self.model, self.callbacks, self.steps = model, callbacks, 0

    def step(self, x: Any) -> Any:
        loss = self.model(x).square().mean()
        for callback in self.callbacks:
            loss = callback.on_step(self, loss)
        return loss


@program(states=4)
def callbacks_added_changed_and_removed(case: Case) -> Seen:
    loop = Loop(_net(case), [Callback()])
    step = case.fn(loop.step)
    yield step(case.rows)
    loop.callbacks.append(Scaling(3.0))
    yield step(case.rows)
    loop.callbacks[-1].by = 5.0
    yield step(case.rows)
    loop.callbacks.insert(0, Scaling(0.5))
    yield step(case.rows)
    del loop.callbacks[1:]
    loop.callbacks[0] = Callback()
    yield step(case.rows)


@program(each_call=True)
def callback_that_counts_in_the_loop(case: Case) -> Seen:
    loop = Loop(_net(case), [Counting(), Scaling(2.0)])
    step = case.fn(loop.step)
    for _ in range(4):
        yield step(case.rows), loop.steps


@program(states=2)
def events_by_name_with_handlers(case: Case) -> Seen:
    handlers: Any = collections.defaultdict(list)

    def fire(event: str, value: Any) -> Any:
        return functools.reduce(lambda v, h: h(v), handlers[event], value)

    def step(x):
        x = fire("start", x)
        return fire("end", x.sum())

    step = case.fn(step)
    handlers["start"].append(lambda v: v + 1)
    yield step(case.x), sorted(handlers)
    handlers["end"].append(operator.neg)
    yield step(case.x)
    yield step(case.x), sorted(handlers)


@program(states=3)
def mask_by_a_set_of_frozen_names(case: Case) -> Seen:
    m, frozen = _net(case), {"0.weight"}

    def step(x):
        loss = m(x).square().mean()
        names = [n for n, _ in m.named_parameters() if n not in frozen]
        found = torch.autograd.grad(loss, [dict(m.named_parameters())[n] for n in names])
        return dict(zip(names, found))

    step = case.fn(step)
    yield step(case.rows)
    frozen.add("2.bias")
    yield step(case.rows)
    frozen -= {"0.weight", "2.bias"}
    yield step(case.rows)


# Frozen and unfrozen layers are two states, each initially without gradients: those of the unfrozen
# layer are None in the first call after unfreezing, a different state for `zero_grad`.
@program(states=3)
def thawed_layers_of_gradual_unfreezing(case: Case) -> Seen:
    m = _net(case)
    m[0].requires_grad_(False)
    sgd = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        sgd.zero_grad()
        m(x).square().mean().backward()
        sgd.step()

    step = case.fn(step)
    for i in range(4):
        if i == 2:
            m[0].requires_grad_(True)
        step(case.rows + i)
        yield _weights(m), [p.grad is None for p in m.parameters()]


@program(each_call=True)
def loss_history_of_fixed_length(case: Case) -> Seen:
    recent: Any = collections.deque(maxlen=2)

    def step(x):
        loss = x.square().mean()
        recent.append(loss)
        return sum(recent) / len(recent)

    step = case.fn(step)
    for i in range(4):
        yield step(case.x + i), list(recent)


@program(states=2)
def best_checkpoint_restored_by_the_loop(case: Case) -> Seen:
    m = _net(case)
    sgd = torch.optim.Adam(m.parameters(), lr=0.1)
    best: dict[str, Any] = {}

    def step(x):
        sgd.zero_grad()
        loss = m(x).square().mean()
        loss.backward()
        sgd.step()
        return loss

    step = case.fn(step)
    for i in range(5):
        loss = step(case.rows)
        if i == 1:
            best = {"m": {k: v.clone() for k, v in m.state_dict().items()}}
            best["o"] = sgd.state_dict()
        if i == 3:
            m.load_state_dict(best["m"])
        yield loss, _weights(m)


@program(states=2)
def schedule_of_dropout_and_noise(case: Case) -> Seen:
    m = case.on(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.0), nn.Linear(4, 2)))

    def step(x):
        return m(x) + (m[1].p > 0)

    step = case.fn(step)
    yield step(case.rows)
    m[1].p = 1.0
    yield step(case.rows)
    m[1].p = 0.0
    yield step(case.rows)
