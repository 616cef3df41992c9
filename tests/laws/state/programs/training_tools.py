"""Python state around training steps: callbacks, caches, state machines, patched methods."""

import abc
import collections
import contextvars
import copy
import enum
import functools
import itertools
import operator
import random
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("training", "jit rows")
Seen = Iterator[Any]


class Phase(enum.Enum):
    WARMUP = "warmup"
    TRAIN = "train"

    def scale(self) -> float:
        return 0.5 if self is Phase.WARMUP else 2.0


class State(NamedTuple):
    step: int
    scale: float


@program(states=2)
def state_machine_with_an_enum(case: Case) -> Seen:
    machine = types.SimpleNamespace(phase=Phase.WARMUP)

    def f(x):
        y = x * machine.phase.scale()
        machine.phase = Phase.TRAIN
        return y

    f = case.fn(f)
    for i in range(5):
        yield f(case.x + i), machine.phase.name


@program(states=3)
def named_tuple_replaced_inside(case: Case) -> Seen:
    holder = types.SimpleNamespace(state=State(0, 1.0))

    def f(x):
        state = holder.state
        holder.state = state._replace(step=min(state.step + 1, 2), scale=state.scale)
        return x * state.step

    f = case.fn(f)
    for i in range(6):
        yield f(case.x + i), tuple(holder.state)


@program(states=2)
def callbacks_in_a_list(case: Case) -> Seen:
    def double(x):
        return x * 2

    def shift(x):
        return x + 1

    callbacks = [double]

    def f(x):
        for callback in callbacks:
            x = callback(x)
        return x

    f = case.fn(f)
    for i in range(3):
        yield f(case.x + i)
    callbacks.append(shift)
    for i in range(3):
        yield f(case.x + i)


@program(states=2)
def a_callback_with_its_own_state(case: Case) -> Seen:
    class Clip:
        def __init__(self):
            self.limit = 1.0

        def __call__(self, x):
            return x.clamp(max=self.limit)

    clip = Clip()
    hooks = {"clip": clip}
    f = case.fn(lambda x: functools.reduce(lambda v, h: h(v), hooks.values(), x))
    for i in range(3):
        yield f(case.x + i)
    clip.limit = 2.0
    for i in range(3):
        yield f(case.x + i)


@program(states=2)
def two_closures_of_one_text_take_turns(case: Case) -> Seen:
    def scaled(by):
        return lambda x: x * by

    holder = types.SimpleNamespace(fn=scaled(2.0))
    f = case.fn(lambda x: holder.fn(x))
    for by in (2.0, 2.0, 2.0, 5.0, 5.0):
        holder.fn = scaled(by)
        yield f(case.x)


@program
def closures_made_anew_with_equal_values(case: Case) -> Seen:
    def scaled(by):
        return lambda x: x * by

    holder = types.SimpleNamespace(fn=None)
    f = case.fn(lambda x: holder.fn(x))
    for i in range(5):
        holder.fn = scaled(2.0)
        yield f(case.x + i)


@program(states=2)
def partials_of_one_function_take_turns(case: Case) -> Seen:
    holder = types.SimpleNamespace(fn=None)
    f = case.fn(lambda x: holder.fn(x))
    for by in (2.0, 2.0, 3.0, 3.0, 2.0):
        holder.fn = functools.partial(operator.mul, by)
        yield f(case.x)


@program(states=2)
def bound_methods_of_two_objects(case: Case) -> Seen:
    class Scale:
        def __init__(self, by):
            self.by = by

        def apply(self, x):
            return x * self.by

    one, two = Scale(2.0), Scale(3.0)
    holder = types.SimpleNamespace(apply=one.apply)
    f = case.fn(lambda x: holder.apply(x))
    for method in (one.apply, one.apply, two.apply, two.apply, one.apply):
        holder.apply = method
        yield f(case.x)


@program(states=2)
def a_method_patched_on_one_object(case: Case) -> Seen:
    class Model:
        def forward(self, x):
            return x * 2

    model = Model()
    f = case.fn(lambda x: model.forward(x))
    for i in range(3):
        yield f(case.x + i)
    model.forward = types.MethodType(lambda self, x: x * 3, model)  # type: ignore[method-assign]
    for i in range(3):
        yield f(case.x + i)


@program(states=2)
def a_base_class_gets_another_method(case: Case) -> Seen:
    class Base(abc.ABC):
        @abc.abstractmethod
        def gain(self): ...

        def apply(self, x):
            return x * self.gain()

    class Model(Base):
        def gain(self):
            return 2.0

    model = Model()
    f = case.fn(lambda x: model.apply(x))
    for i in range(3):
        yield f(case.x + i)
    case.patch(Base, "apply", lambda self, x: x + self.gain())
    for i in range(3):
        yield f(case.x + i)


@program(states=2)
def a_default_argument_that_is_mutable(case: Case) -> Seen:
    def scale(x, options={"by": 2.0}):  # noqa: B006
        return x * options["by"]

    f = case.fn(lambda x: scale(x))
    for i in range(3):
        yield f(case.x + i)
    scale.__defaults__[0]["by"] = 3.0  # type: ignore[index]
    for i in range(3):
        yield f(case.x + i)


@program(states=2)
def memo_of_tables_by_length(case: Case) -> Seen:
    tables: dict[int, Any] = {}

    def table(n, x):
        if n not in tables:
            tables[n] = torch.arange(n, device=x.device).float()
        return tables[n]

    f = case.fn(lambda x: x * table(x.shape[-1], x))
    for i in range(4):
        yield f(case.x + i), tables


@program(each_call=True)
def memo_that_is_cleared(case: Case) -> Seen:
    @functools.lru_cache
    def factor(n):
        return n * scale["by"]

    scale = {"by": 2.0}
    f = case.fn(lambda x: x * factor(len(x)))
    for i in range(3):
        yield f(case.x + i)
    scale["by"] = 3.0
    yield f(case.x)  # as before: it is cached
    factor.cache_clear()
    for i in range(2):
        yield f(case.x + i)


@program(states=2)
def a_context_variable(case: Case) -> Seen:
    scale = contextvars.ContextVar("scale", default=2.0)

    def f(x):
        token = scale.set(scale.get() + 1)
        try:
            return x * scale.get()
        finally:
            scale.reset(token)

    f = case.fn(f)
    for i in range(3):
        yield f(case.x + i), scale.get()
    scale.set(5.0)
    for i in range(3):
        yield f(case.x + i), scale.get()


@program(states=2)
def state_of_the_thread(case: Case) -> Seen:
    class Local(threading.local):
        scale = 2.0

    local = Local()
    f = case.fn(lambda x: x * local.scale)
    for i in range(3):
        yield f(case.x + i)
    local.scale = 3.0
    for i in range(3):
        yield f(case.x + i)


@program(states=3)
def chain_of_maps(case: Case) -> Seen:
    defaults, own = {"scale": 2.0}, {}  # type: ignore[var-annotated]
    options = collections.ChainMap(own, defaults)
    f = case.fn(lambda x: x * options["scale"])
    for i in range(2):
        yield f(case.x + i)
    defaults["scale"] = 3.0
    for i in range(2):
        yield f(case.x + i)
    own["scale"] = 4.0
    for i in range(2):
        yield f(case.x + i)


@program(states=2)
def an_object_that_delegates(case: Case) -> Seen:
    class Wrapper:
        def __init__(self, inner):
            self._inner = inner

        def __getattr__(self, name):
            return getattr(self._inner, name)

    inner = types.SimpleNamespace(scale=2.0)
    outer = Wrapper(Wrapper(inner))
    f = case.fn(lambda x: x * outer.scale)
    for i in range(3):
        yield f(case.x + i)
    inner.scale = 3.0
    for i in range(3):
        yield f(case.x + i)


@program(states=2)
def function_dispatched_by_type(case: Case) -> Seen:
    @functools.singledispatch
    def scale(option, x):
        return x

    class Option:
        pass

    option = Option()
    f = case.fn(lambda x: scale(option, x) * 2)
    for i in range(3):
        yield f(case.x + i)
    scale.register(Option, lambda option, x: x * 10)
    for i in range(3):
        yield f(case.x + i)


@program(each_call=True)
def counter_of_itertools_in_an_attribute(case: Case) -> Seen:
    class Trainer:
        def __init__(self):
            self.steps = itertools.count(1)

        def step(self, x):
            return x * next(self.steps)

    trainer = Trainer()
    f = case.fn(trainer.step)
    for i in range(4):
        yield f(case.x + i)


@program(each_call=True)
def curriculum_that_is_used_up(case: Case) -> Seen:
    stages = [3.0, 2.0, 1.0]

    def f(x):
        scale = stages.pop() if stages else 10.0
        return x * scale

    f = case.fn(f)
    for i in range(5):
        yield f(case.x + i), stages


@program(each_call=True)
def mixup_by_python(case: Case) -> Seen:
    def f(x, y):
        ratio = random.betavariate(1.0, 1.0)
        return ratio * x + (1 - ratio) * y

    f = case.fn(f)
    for i in range(4):
        yield f(case.x + i, case.x - i)


@program(states=2)
def a_loss_scale_that_python_halves(case: Case) -> Seen:
    scaler = types.SimpleNamespace(scale=8.0)

    def f(x):
        loss = (x * scaler.scale).sum()
        scaler.scale = max(4.0, scaler.scale / 2)
        return loss

    f = case.fn(f)
    for i in range(5):
        yield f(case.x + i), scaler.scale


@program
def replay_buffer_of_fixed_size(case: Case) -> Seen:
    buffer = [case.x, case.x + 1]

    def f(x):
        buffer[0], buffer[1] = buffer[1], x * 2
        return buffer[0] + buffer[1]

    f = case.fn(f)
    for i in range(5):
        yield f(case.x + i), buffer


@program
def teacher_that_is_swapped_in(case: Case) -> Seen:
    student, teacher = case.linear(), case.linear()

    def f(x):
        with torch.no_grad():
            for s, t in zip(student.parameters(), teacher.parameters(), strict=True):
                t.mul_(0.9).add_(s, alpha=0.1)
        return teacher(x) - student(x)

    f = case.fn(f)
    for i in range(4):
        yield f(case.rows + i), teacher


@program
def weights_loaded_between_steps(case: Case) -> Seen:
    m = case.linear()
    sgd = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    saved = copy.deepcopy((m.state_dict(), sgd.state_dict()))

    def step(x):
        sgd.zero_grad()
        loss = m(x).square().sum()
        loss.backward()
        sgd.step()
        return loss

    step = case.fn(step)
    for i in range(3):
        yield step(case.rows + i), m
    m.load_state_dict(saved[0])
    for i in range(3):
        yield step(case.rows + i), m


@program(states=2)
def a_submodule_is_replaced(case: Case) -> Seen:
    m = case.on(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    f = case.fn(lambda x: m(x))
    for i in range(3):
        yield f(case.rows + i)
    m[1] = nn.Tanh()  # type: ignore[index]
    for i in range(3):
        yield f(case.rows + i)


@program(states=2)
def dropout_probability_that_a_schedule_sets(case: Case) -> Seen:
    m = case.on(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0)))
    f = case.fn(lambda x: m(x))
    for i in range(3):
        yield f(case.rows + i)
    m[1].p = 1.0  # type: ignore[index]
    for i in range(3):
        yield f(case.rows + i)


@program(states=2)
def a_registry_filled_by_a_decorator(case: Case) -> Seen:
    registry: dict[str, Any] = {}

    def register(fn):
        registry[fn.__name__] = fn
        return fn

    @register
    def loss(x):
        return x.sum()

    f = case.fn(lambda x: registry["loss"](x))
    for i in range(3):
        yield f(case.x + i)

    def other(x):
        return x.mean()

    other.__name__ = "loss"
    register(other)
    for i in range(3):
        yield f(case.x + i)


@program(each_call=True)
def a_decorator_that_counts_calls(case: Case) -> Seen:
    def counted(fn):
        @functools.wraps(fn)
        def call(*args):
            call.calls += 1
            return fn(*args)

        call.calls = 0
        return call

    @counted
    def scaled(x):
        return x * scaled.calls

    f = case.fn(scaled)
    for i in range(4):
        yield f(case.x + i), scaled.calls


@program(states=3)
def recursion_over_a_tree_of_objects(case: Case) -> Seen:
    class Node:
        def __init__(self, value, *children):
            self.value, self.children = value, list(children)

    tree = Node(1.0, Node(2.0), Node(3.0, Node(4.0)))

    def total(node):
        return node.value + sum(map(total, node.children))

    f = case.fn(lambda x: x * total(tree))
    for i in range(2):
        yield f(case.x + i)
    tree.children[1].children[0].value = 5.0
    for i in range(2):
        yield f(case.x + i)
    tree.children[0].children.append(Node(7.0))
    for i in range(2):
        yield f(case.x + i)


@program(states=2)
def a_parent_that_is_held_weakly(case: Case) -> Seen:
    class Part:
        def __init__(self, owner):
            self.owner = weakref.proxy(owner)

        def apply(self, x):
            return x * self.owner.scale

    class Owner:
        scale = 1.0

    owner = Owner()
    owner.scale = 2.0
    part = Part(owner)
    f = case.fn(lambda x: part.apply(x))
    for i in range(3):
        yield f(case.x + i)
    owner.scale = 3.0
    for i in range(3):
        yield f(case.x + i)


@program
def bound_methods_made_anew(case: Case) -> Seen:
    class Scale:
        def __init__(self, by):
            self.by = by

        def apply(self, x):
            return x * self.by

    holder = types.SimpleNamespace(apply=None)
    f = case.fn(lambda x: holder.apply(x))
    for i in range(4):
        holder.apply = Scale(2.0).apply
        yield f(case.x + i)


@program(states=2)
def an_operator_of_a_class_is_patched(case: Case) -> Seen:
    class Gain:
        def __init__(self, value):
            self.value = value

        def __rmul__(self, x):
            return x * self.value

    class Scaled(Gain):
        pass

    gain = Scaled(2.0)
    f = case.fn(lambda x: x.sum().reshape(1)[0] + gain.__rmul__(x))
    for i in range(3):
        yield f(case.x + i)
    case.patch(Gain, "__rmul__", lambda self, x: x * self.value * 10)
    for i in range(3):
        yield f(case.x + i)
