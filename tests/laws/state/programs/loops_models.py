"""Python state of models as people write them: experts, caches, penalties, own optimizers."""

import abc
import collections
import contextlib
import functools
import itertools
import logging
import operator
import types
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("loops", "jit rows")
Seen = Iterator[Any]


class Experts(nn.Module):
    """A mixture of experts that keeps its auxiliary loss and the load of each expert."""

    def __init__(self, count: int, top: int) -> None:
        super().__init__()
        self.gate = nn.Linear(3, count)
        self.experts = nn.ModuleList(nn.Linear(3, 2) for _ in range(count))
        self.top, self.aux, self.coefficient = top, None, 0.1
        self.register_buffer("load", torch.zeros(count))

    def forward(self, x: Any) -> Any:
        scores = self.gate(x).softmax(-1)
        value, index = scores.topk(self.top, -1)
        chosen = torch.zeros_like(scores).scatter(-1, index, value)
        self.load += (chosen > 0).sum(0)
        self.aux = self.coefficient * (scores.mean(0) * chosen.mean(0)).sum() * len(self.experts)
        return sum(chosen[:, i : i + 1] * e(x) for i, e in enumerate(self.experts))


@program(states=3)
def mixture_of_experts_with_its_load(case: Case) -> Seen:
    m = case.on(Experts(3, 2))
    forward = case.fn(lambda x: m(x).square().mean())
    for i in range(5):
        m.coefficient = 0.1 if i < 2 else 0.5
        m.top = 2 if i < 4 else 1
        loss = forward(case.rows + i) + m.aux
        grads = torch.autograd.grad(loss, list(m.parameters()), allow_unused=True)
        yield loss, grads, m.load


@program(states=2)
def expert_added_to_a_mixture(case: Case) -> Seen:
    m = case.on(Experts(2, 1))
    forward = case.fn(lambda x: m(x))
    yield forward(case.rows), m.aux
    m.experts[0] = case.linear()
    yield forward(case.rows), m.aux
    yield forward(case.rows), m.load


@program(states=2)
def gradient_penalty_with_a_changing_weight(case: Case) -> Seen:
    critic = case.on(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
    settings = types.SimpleNamespace(penalty=1.0)
    adam = torch.optim.Adam(critic.parameters(), lr=0.01)

    def step(real, fake):
        mixed = (0.3 * real + 0.7 * fake).requires_grad_()
        (found,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        penalty = (found.norm(2, -1) - 1).square().mean()
        loss = critic(fake).mean() - critic(real).mean() + settings.penalty * penalty
        adam.zero_grad()
        loss.backward()
        adam.step()
        return loss, penalty

    step = case.fn(step)
    for i in range(4):
        settings.penalty = 1.0 if i < 2 else 10.0
        yield step(case.rows, case.rows + 1), list(critic.parameters())


class Lion(torch.optim.Optimizer):
    """An optimizer of one's own, which counts its steps in its state."""

    def __init__(self, params: Any, lr: float, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["moment"], state["step"] = torch.zeros_like(p), 0
                state["step"] += 1
                moment = state["moment"]
                update = (moment * g["beta"] + p.grad * (1 - g["beta"])).sign()
                p.add_(update, alpha=-g["lr"] / state["step"])
                moment.lerp_(p.grad, 1 - g["beta"])


@program(each_call=True)
def optimizer_of_ones_own_that_counts(case: Case) -> Seen:
    m = case.linear()
    lion = Lion(m.parameters(), 0.1)

    def step(x):
        lion.zero_grad()
        m(x).square().mean().backward()
        lion.step()

    step = case.fn(step)
    for i in range(4):
        step(case.rows + i)
        yield [s["step"] for s in lion.state.values()], list(m.parameters())


class Decayed(torch.optim.SGD):
    """An optimizer of PyTorch's with a step that does more."""

    decays = 0.5

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for p in (p for g in self.param_groups for p in g["params"]):
                p.mul_(self.decays)
        return super().step(closure)


@program(states=2)
def optimizer_derived_from_pytorchs(case: Case) -> Seen:
    m = case.linear()
    sgd = Decayed(m.parameters(), lr=0.1, momentum=0.9)
    case.patch(Decayed, "decays", 0.5)

    def step(x):
        sgd.zero_grad()
        m(x).square().mean().backward()
        sgd.step()

    step = case.fn(step)
    for i in range(4):
        Decayed.decays = 0.5 if i < 2 else 0.9
        step(case.rows)
        yield list(m.parameters())


class KeyValues:
    """A cache of keys and values with a position, as of decoders."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.seen = 0

    def add(self, key: Any) -> Any:
        self.keys.append(key)
        self.seen += key.shape[0]
        return torch.cat(self.keys)


@program(each_call=True)
def cache_of_keys_in_an_object_that_grows(case: Case) -> Seen:
    cache = KeyValues()

    def decode(x):
        keys = cache.add(x)
        return (x @ keys.t()).softmax(-1) @ keys, cache.seen

    decode = case.fn(decode)
    for i in range(3):
        yield decode(case.rows + i), len(cache.keys)


@program
def cache_of_fixed_size_and_a_position(case: Case) -> Seen:
    kept = torch.zeros(4, 3).to(case.device)
    position = torch.zeros((), dtype=torch.long).to(case.device)

    def decode(x):
        kept.index_copy_(0, position.reshape(1), x[:1])
        position.add_(1)
        return kept.sum(0) / position

    decode = case.fn(decode)
    for i in range(4):
        yield decode(case.rows + i), kept, position


class Frozen(NamedTuple):
    scale: float
    layers: tuple[Any, ...]


@program(states=3)
def named_tuple_of_settings_replaced(case: Case) -> Seen:
    settings = {"now": Frozen(1.0, (case.linear(3, 3),))}

    def run(x):
        now = settings["now"]
        return functools.reduce(lambda v, layer: layer(v), now.layers, x) * now.scale

    run = case.fn(run)
    yield run(case.rows)
    settings["now"] = settings["now"]._replace(scale=2.0)
    yield run(case.rows)
    settings["now"] = settings["now"]._replace(layers=settings["now"].layers * 2)
    yield run(case.rows)


class Registry:
    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def register(self, name: str) -> Any:
        def add(fn: Any) -> Any:
            self._made[name] = fn
            return fn

        return add

    def __getitem__(self, name: str) -> Any:
        return self._made[name]


@program(states=2)
def registry_of_losses_with_a_replaced_entry(case: Case) -> Seen:
    registry = Registry()
    registry.register("loss")(lambda x: x.square().mean())

    def step(x):
        return registry["loss"](x)

    step = case.fn(step)
    yield step(case.x)
    registry.register("loss")(lambda x: x.abs().sum())
    yield step(case.x)
    yield step(case.x)


class Policy(abc.ABC):
    @abc.abstractmethod
    def choose(self, x: Any) -> Any: ...


class Greedy(Policy):
    def choose(self, x: Any) -> Any:
        return x.argmax(-1)


class Soft(Policy):
    temperature = 2.0

    def choose(self, x: Any) -> Any:
        return (x / self.temperature).softmax(-1)


@program(states=3)
def policy_replaced_by_another_class(case: Case) -> Seen:
    agent = types.SimpleNamespace(policy=Greedy())
    act = case.fn(lambda x: agent.policy.choose(x))
    yield act(case.rows)
    agent.policy = Soft()
    yield act(case.rows)
    agent.policy.temperature = 0.5
    yield act(case.rows)


@program(states=2)
def layers_skipped_by_a_mask(case: Case) -> Seen:
    layers, kept = [case.linear(3, 3) for _ in range(3)], [True, True, True]

    def run(x):
        for layer in itertools.compress(layers, kept):
            x = layer(x)
        return x

    run = case.fn(run)
    yield run(case.rows)
    kept[1] = False
    yield run(case.rows)
    yield run(case.rows)


@program(states=3)
def low_rank_adapters_switched(case: Case) -> Seen:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(3, 3)
            self.a = nn.ParameterDict({"x": torch.ones(1, 3), "y": torch.full((1, 3), 2.0)})
            self.active: str | None = None

        def forward(self, x: Any) -> Any:
            out = self.base(x)
            return out if self.active is None else out + x @ self.a[self.active].t()

    m = case.on(Adapted())
    run = case.fn(lambda x: m(x))
    for active in (None, "x", "y", None):
        m.active = active
        yield run(case.rows)


@program(states=2)
def adapter_merged_into_its_weight(case: Case) -> Seen:
    m, extra, merged = case.linear(3, 3), torch.ones(3, 3).to(case.device), [False]

    def run(x):
        return m(x) if merged[0] else m(x) + x @ extra

    run = case.fn(run)
    yield run(case.rows)
    with torch.no_grad():
        m.weight += extra.t()
    merged[0] = True
    yield run(case.rows)
    yield run(case.rows)


@program(states=2)
def logger_by_level_in_forward(case: Case) -> Seen:
    log = logging.getLogger("tests.laws.loops")
    case.undo(log.setLevel, log.level)
    log.setLevel(logging.INFO)

    def run(x):
        if log.isEnabledFor(logging.DEBUG):
            return x.sum()
        return x.mean()

    run = case.fn(run)
    yield run(case.x)
    log.setLevel(logging.DEBUG)
    yield run(case.x)
    yield run(case.x)


@program(each_call=True)
def metrics_by_phase_in_nested_dicts(case: Case) -> Seen:
    metrics: dict[str, dict[str, list[Any]]] = {}
    phase = ["train"]

    def step(x):
        found = metrics.setdefault(phase[0], {}).setdefault("loss", [])
        found.append(x.mean())
        return torch.stack(found).mean()

    step = case.fn(step)
    for i, name in enumerate(("train", "train", "val", "train")):
        phase[0] = name
        yield step(case.x + i), metrics


@program(states=2)
def tied_weights_untied(case: Case) -> Seen:
    first, second = case.linear(3, 3), case.linear(3, 3)
    second.weight = first.weight

    def loss(x):
        return second(first(x)).square().mean()

    loss = case.fn(loss)
    for i in range(4):
        if i == 2:
            second.weight = nn.Parameter(first.weight.detach().clone())
        made = loss(case.rows)
        yield made, torch.autograd.grad(made, [first.weight, second.weight])


@program(states=2)
def momentum_encoder_by_zip(case: Case) -> Seen:
    online, target = case.linear(), case.linear()
    options = {"m": 0.9}

    def step(x):
        with torch.no_grad():
            for p, q in zip(online.parameters(), target.parameters()):
                q.data = q.data * options["m"] + p.data * (1 - options["m"])
        return F.cosine_similarity(online(x), target(x).detach()).mean()

    step = case.fn(step)
    for m in (0.9, 0.9, 0.5):
        options["m"] = m
        yield step(case.rows), list(target.parameters())


@program(each_call=True)
def queue_of_negatives_in_a_module(case: Case) -> Seen:
    class Queue(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("items", torch.zeros(4, 3))
            self.at = 0

        def forward(self, x: Any) -> Any:
            out = x @ self.items.t()
            self.items[self.at : self.at + 2] = x
            self.at = (self.at + 2) % 4
            return out

    m = case.on(Queue())
    run = case.fn(lambda x: m(x))
    for i in range(4):
        yield run(case.rows + i), m.items, m.at


@program(each_call=True)
def replay_memory_of_tuples(case: Case) -> Seen:
    memory: Any = collections.deque(maxlen=3)

    def act(x):
        value = x.tanh()
        memory.append((x, value))
        return torch.stack([v for _, v in memory]).mean(0)

    act = case.fn(act)
    for i in range(4):
        yield act(case.x + i), [v for _, v in memory]


@program(states=2)
def context_manager_that_scales_within(case: Case) -> Seen:
    factor = [1.0]

    @contextlib.contextmanager
    def scaled(by: float) -> Iterator[None]:
        factor.append(by)
        try:
            yield
        finally:
            factor.pop()

    run = case.fn(lambda x: x * factor[-1])
    yield run(case.x)
    with scaled(3.0):
        yield run(case.x)
    yield run(case.x)


@program
def context_manager_entered_within(case: Case) -> Seen:
    factor, entered = [1.0], []

    @contextlib.contextmanager
    def scaled(by: float) -> Iterator[None]:
        factor.append(by)
        try:
            yield
        finally:
            factor.pop()

    def run(x):
        with scaled(3.0):
            x = x * factor[-1]
        return x * factor[-1]

    run = case.fn(run)
    for _ in range(3):
        yield run(case.x), list(factor), list(entered)


@program(states=2)
def listeners_held_weakly(case: Case) -> Seen:
    class Listener:
        def __init__(self, by: float) -> None:
            self.by = by

    one, two = Listener(2.0), Listener(3.0)
    listeners = [weakref.ref(one), weakref.ref(two)]

    def run(x):
        for ref in listeners:
            found = ref()
            if found is not None:
                x = x * found.by
        return x

    run = case.fn(run)
    yield run(case.x)
    del two
    yield run(case.x)
    yield run(case.x)


@program(states=3)
def stateful_norm_by_a_counter_buffer(case: Case) -> Seen:
    m = case.on(nn.BatchNorm1d(3, momentum=None))
    run = case.fn(lambda x: m(x))
    for i in range(5):
        m.train(i != 3)
        m.momentum = None if i < 4 else 0.3
        yield run(case.rows + i), m.num_batches_tracked, m.running_mean


@program(states=2)
def parameters_replaced_in_a_list(case: Case) -> Seen:
    ps = nn.ParameterList([torch.ones(3), torch.full((3,), 2.0)])
    ps = case.on(ps)
    run = case.fn(lambda x: functools.reduce(operator.mul, ps, x))
    yield run(case.x)
    ps.append(nn.Parameter(torch.full((3,), 3.0).to(case.device)))
    yield run(case.x)
    with torch.no_grad():
        ps[0].fill_(5.0)
    yield run(case.x)


@program(states=2)
def gradients_clipped_by_a_running_norm(case: Case) -> Seen:
    m, kept = case.linear(), {"norm": torch.ones(()).to(case.device), "on": False}
    sgd = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        sgd.zero_grad()
        m(x).square().mean().backward()
        total = nn.utils.clip_grad_norm_(m.parameters(), 1.0) if kept["on"] else kept["norm"] * 2
        kept["norm"] = 0.5 * kept["norm"] + 0.5 * total
        sgd.step()

    step = case.fn(step)
    for i in range(4):
        kept["on"] = i >= 2
        step(case.rows + i)
        yield kept["norm"], list(m.parameters())
