"""Ordinary code around models: buffers, rollouts, trainers, metrics."""

import collections
import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("research", "jit rows trace")
Seen = Iterator[Any]


@program(states=4)
def ring_of_a_replay_buffer(case: Case) -> Seen:
    class Replay:
        def __init__(self, size, device):
            self.data = torch.zeros(size, 3, device=device)
            self.at, self.full = 0, False

        def push(self, x):
            self.data[self.at] = x
            self.at += 1
            if self.at == len(self.data):
                self.at, self.full = 0, True

        def mean(self):
            return (self.data if self.full else self.data[: self.at]).mean(0)

    replay = Replay(2, case.device)

    def f(x):
        replay.push(x)
        return replay.mean()

    f = case.fn(f)
    for i in range(6):
        yield f(case.x + i), replay


@program(each_call=True)
def replay_buffer_of_tuples(case: Case) -> Seen:
    Step = collections.namedtuple("Step", "state reward")
    buffer: collections.deque[Any] = collections.deque(maxlen=3)

    def f(x):
        buffer.append(Step(x, x.sum()))
        return torch.stack([s.reward for s in buffer]).mean()

    f = case.fn(f)
    for i in range(5):
        yield f(case.x + i), len(buffer), buffer[-1].state


@program(each_call=True)
def rollout_of_a_policy(case: Case) -> Seen:
    class Env:
        def __init__(self, x):
            self.x, self.t = x, 0

        def step(self, action):
            self.t += 1
            self.x = self.x + action
            return self.x, self.t >= 3

    policy, trajectories = case.linear(3, 3), []

    def rollout(x):
        env, done, steps = Env(x), False, []
        while not done:
            action = policy(env.x).tanh()
            _, done = env.step(action.detach())
            steps.append(action.square().mean())
        trajectories.append(len(steps))
        return torch.stack(steps).sum()

    rollout = case.fn(rollout)
    for i in range(3):
        policy.zero_grad()
        rollout(case.x + i).backward()
        yield policy, trajectories


@program(states=1)
def environment_kept_between_rollouts(case: Case) -> Seen:
    class Env:
        def __init__(self, x):
            self.x = x

    env, policy = Env(case.x), case.linear(3, 3)

    def step(gain):
        with torch.no_grad():
            env.x = env.x + gain * policy(env.x).tanh()
        return env.x.sum()

    step = case.fn(step)
    for i in range(4):
        yield step(case.tensor(1.0 + i)), env


@program(states=3)
def exploration_rate_that_decays(case: Case) -> Seen:
    class Schedule:
        def __init__(self):
            self.value, self.least = 0.5, 0.125

        def next(self):
            value, self.value = self.value, max(self.least, self.value / 2)
            return value

    schedule = Schedule()
    f = case.fn(lambda x: x * schedule.next())
    for _ in range(5):
        yield f(case.x), schedule


@program(states=3, modes="jit rows")
def state_machine_of_a_trainer(case: Case) -> Seen:
    class Trainer:
        phases = ("warmup", "train", "finetune")

        def __init__(self, m):
            self.m, self.phase, self.gains = m, 0, dict(zip(self.phases, (0.1, 1.0, 0.5)))

        def advance(self):
            self.phase = (self.phase + 1) % len(self.phases)

        def loss(self, x):
            return self.m(x).square().sum() * self.gains[self.phases[self.phase]]

    trainer = Trainer(case.linear())
    f = case.fn(lambda x: trainer.loss(x))
    for _ in range(4):
        yield f(case.x)
        trainer.advance()


@program(states=2)
def trainer_whose_step_is_a_method(case: Case) -> Seen:
    class Trainer:
        def __init__(self):
            self.m, self.log_every, self.seen = case.linear(), 2, {}

        def training_step(self, x):
            loss = self.m(x).square().mean()
            self.seen["shape"] = tuple(x.shape)
            return {"loss": loss, "rows": x.shape[0]}

    trainer = Trainer()
    step = case.fn(lambda x: trainer.training_step(x))
    for i in range(4):
        yield step(case.rows + i), trainer.seen


@program(states=2)
def metric_with_a_confusion_matrix(case: Case) -> Seen:
    class Confusion:
        def __init__(self, n, device):
            self.matrix = torch.zeros(n, n, device=device)
            self.updated = False

        def update(self, guess, label):
            self.updated = True
            pairs = F.one_hot(label, 2)[:, :, None] * F.one_hot(guess, 2)[:, None]
            self.matrix += pairs.sum(0)

    metric = Confusion(2, case.device)

    def f(x):
        metric.update((x > 2).long(), (x > 1).long())
        return metric.matrix.diagonal().sum()

    f = case.fn(f)
    for i in range(4):
        yield f(case.x + i), metric


@program(states=2, modes="jit rows")
def losses_with_weights_by_name(case: Case) -> Seen:
    weights = {"mse": 1.0, "l1": 0.5}
    table = {"mse": F.mse_loss, "l1": F.l1_loss}
    m = case.linear(3, 3)

    def f(x):
        y = m(x)
        parts = {name: table[name](y, x) * w for name, w in weights.items() if w}
        return sum(parts.values()), {name: part.detach() for name, part in parts.items()}

    f = case.fn(f)
    for weights["l1"] in (0.5, 0.0, 0.0, 0.5):
        yield f(case.x)


@program(states=3, modes="jit rows")
def augmentations_in_a_pipeline(case: Case) -> Seen:
    class Scale:
        def __init__(self, by):
            self.by = by

        def __call__(self, x):
            return x * self.by

    class Compose:
        def __init__(self, *stages):
            self.stages = list(stages)

        def __call__(self, x):
            for stage in self.stages:
                x = stage(x)
            return x

        def __len__(self):
            return len(self.stages)

    pipeline = Compose(Scale(2.0), torch.neg)
    f = case.fn(lambda x: pipeline(x) + len(pipeline))
    yield f(case.x)
    pipeline.stages[0].by = 3.0
    yield f(case.x)
    pipeline.stages.reverse()
    pipeline.stages.append(Scale(0.5))
    yield f(case.x)


@program(states=4, modes="jit rows")
def profiler_that_is_switched_on(case: Case) -> Seen:
    class Profiler:
        enabled = False

        def __init__(self):
            self.names: list[str] = []

        @contextlib.contextmanager
        def region(self, name):
            if self.enabled and name not in self.names:
                self.names.append(name)
            yield

    profiler = Profiler()

    def f(x):
        with profiler.region("double"):
            x = x * 2
        return x

    f = case.fn(f)
    for profiler.enabled in (False, True, True, False):
        yield f(case.x), profiler.names


@program(states=4)
def tokens_in_a_vocabulary_that_grows(case: Case) -> Seen:
    vocabulary = {"a": 0, "b": 1}
    table = case.x.new_ones(4, 3).cumsum(0)

    def f(x, words):
        ids = [vocabulary.setdefault(word, len(vocabulary)) for word in words]
        return table[ids[0]] * x + len(vocabulary)

    f = case.fn(f)
    yield f(case.x, ("a",)), vocabulary
    yield f(case.x, ("c",)), vocabulary
    yield f(case.x, ("c",)), vocabulary
    yield f(case.x, ("a",)), vocabulary


@program(states=2)
def module_that_keeps_its_last_input_shape(case: Case) -> Seen:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.last_shape, self.calls = nn.Linear(3, 2), None, {"eval": 0}

        def forward(self, x):
            changed = self.last_shape is not None and self.last_shape != x.shape
            self.last_shape = x.shape
            return self.linear(x) * (2 if changed else 1)

    m = case.on(Net())
    f = case.fn(m)
    for i in range(4):
        yield f(case.rows + i), m.last_shape
