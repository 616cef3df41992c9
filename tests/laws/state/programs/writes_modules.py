"""L2: what a call changes in modules, hooks and classes."""

import collections
import contextlib
import copy
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("writes", "jit rows")
Seen = Iterator[Any]


class Config:
    def __init__(self, **values):
        self.__dict__.update(values)


def _turns(case: Case, f: Any, look: Any) -> Seen:
    """Five calls of a function that goes back and forth between two states."""
    f = case.fn(f)
    for i in range(5):
        yield f(case.x + i), look()


@program(states=2)
def module_attribute_counted_per_instance(case: Case) -> Seen:
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.turn = 0

        def forward(self, x):
            self.turn = 1 - self.turn
            return x + self.turn

    m = nn.Sequential(Layer(), Layer())
    m[1].turn = 1
    f = case.fn(m)
    for i in range(5):
        yield f(case.x + i), [layer.turn for layer in m]


@program(states=2)
def buffer_registered_at_first(case: Case) -> Seen:
    class Layer(nn.Module):
        def forward(self, x):
            if "seen" not in self._buffers:
                self.register_buffer("seen", torch.zeros(3, device=x.device))
            self.seen.add_(x)
            return x * 2

    m = Layer()
    f = case.fn(m)
    for i in range(4):
        yield f(case.x + i), m


@program(states=2)
def parameter_registered_at_first(case: Case) -> Seen:
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = None

        def forward(self, x):
            if self.weight is None:
                self.weight = nn.Parameter(torch.ones(3, device=x.device))
            return (x * self.weight).sum()

    m = Lazy()
    f = case.fn(m)
    for i in range(4):
        f(case.x + i).backward()
        yield m


@program(states=2)
def lazy_module_of_pytorch(case: Case) -> Seen:
    m = nn.LazyLinear(2, device=case.device)
    f = case.fn(m)
    shapes = []
    for i in range(3):
        shapes.append(tuple(f(case.x + i).shape))
        yield shapes, tuple(m.weight.shape), type(m).__name__


@program(states=2)
def hook_registered_inside(case: Case) -> Seen:
    m = case.linear()

    def f(x):
        if not m._forward_hooks:
            m.register_forward_hook(lambda module, args, y: y * 10)
            return m(x)
        return -m(x)

    f = case.fn(f)
    for i in range(3):
        yield f(case.x + i), len(m._forward_hooks), m(case.x)


@program(states=2)
def hook_removed_inside(case: Case) -> Seen:
    m = case.linear()
    handles = [m.register_forward_hook(lambda module, args, y: y * 10)]

    def f(x):
        y = m(x)
        while handles:
            handles.pop().remove()
        return y

    f = case.fn(f)
    for i in range(3):
        yield f(case.x + i), len(handles), len(m._forward_hooks)
    handles.append(m.register_forward_hook(lambda module, args, y: y * 10))
    yield f(case.x), len(handles), len(m._forward_hooks)


@program(states=2)
def gradients_dropped_inside(case: Case) -> Seen:
    m = case.linear()
    m(case.x).sum().backward()

    def f(x):
        had = m.weight.grad is not None
        m.weight.grad = None
        return m(x).detach() if had else -m(x).detach()

    f = case.fn(f)
    for i in range(3):
        yield f(case.x + i), m
    m(case.x).sum().backward()
    yield f(case.x), m


@program(states=2)
def seed_set_inside(case: Case) -> Seen:
    def f(x):
        torch.manual_seed(7)
        return torch.rand_like(x)

    f = case.fn(f)
    values = [f(case.x) for _ in range(3)]
    for y in values:
        yield bool((y == values[0]).all())


@program(states=1)
def learning_rate_written_inside(case: Case) -> Seen:
    m = case.linear()
    opt = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        opt.param_groups[0]["lr"] = 0.05
        opt.zero_grad()
        m(x).sum().backward()
        opt.step()

    step = case.fn(step)
    opt.param_groups[0]["lr"] = 0.05
    for i in range(4):
        step(case.x + i)
        yield m, opt.param_groups[0]["lr"]


@program(states=2)
def stack_of_contexts_left_open(case: Case) -> Seen:
    s = Config(depth=0, stack=contextlib.ExitStack())

    @contextlib.contextmanager
    def deeper():
        s.depth += 1
        yield
        s.depth -= 1

    def f(x):
        with deeper():
            y = x * s.depth
        return y

    f = case.fn(f)
    for i in range(3):
        yield f(case.x + i), s.depth
    s.depth = 1
    yield f(case.x), s.depth


@program(states=2)
def object_copied_and_replaced(case: Case) -> Seen:
    s = Config(cfg=types.SimpleNamespace(turn=0, tags=["a"]))

    def f(x):
        fresh = copy.deepcopy(s.cfg)
        fresh.turn = 1 - fresh.turn
        s.cfg = fresh
        return x * s.cfg.turn

    f = case.fn(f)
    seen = []
    for i in range(4):
        y = f(case.x + i)
        seen.append(s.cfg)
        yield y, s.cfg, len({id(c) for c in seen})


@program(each_call=True)
def class_made_inside_that_registers_itself(case: Case) -> Seen:
    class Base:
        known: list[str] = []

        def __init_subclass__(cls):
            Base.known.append(cls.__name__)

    def f(x):
        type(f"Made{len(Base.known)}", (Base,), {})
        return x * len(Base.known)

    f = case.fn(f)
    for i in range(3):
        yield f(case.x + i), Base.known


@program(states=2)
def attribute_whose_type_changes(case: Case) -> Seen:
    s = Config(value=[1.0])

    def f(x):
        if isinstance(s.value, list):
            y = x * s.value[0]
            s.value = {"gain": s.value[0]}
            return y
        y = x * s.value["gain"] * 10
        s.value = [s.value["gain"]]
        return y

    yield from _turns(case, f, lambda: s)


@program(states=2)
def class_of_an_object_switched_inside(case: Case) -> Seen:
    class Off:
        def scale(self, x):
            self.__class__ = On
            return x

    class On(Off):
        def scale(self, x):
            self.__class__ = Off
            return x * 2

    s = Off()
    yield from _turns(case, lambda x: s.scale(x), lambda: type(s).__name__)


@program(states=2)
def ordered_set_kept_as_a_dict(case: Case) -> Seen:
    names = dict.fromkeys(["a", "b"])

    def f(x):
        first = next(iter(names))
        names.pop(first)
        names[first] = None
        return x * (1 if first == "a" else 2)

    yield from _turns(case, f, lambda: list(names))


@program(states=3)
def counter_most_common_rotates(case: Case) -> Seen:
    votes = collections.Counter(a=2, b=1)

    def f(x):
        best = votes.most_common(1)[0][0]
        votes.subtract([best])
        votes.update(["b" if best == "a" else "a"])
        return x * ord(best)

    f = case.fn(f)
    for i in range(5):
        yield f(case.x + i), votes


@program(states=2)
def dict_of_losses_made_anew_at_each_call(case: Case) -> Seen:
    s, m = Config(losses={}), case.linear()

    def f(x):
        y = m(x)
        s.losses = {}
        s.losses["mean"] = y.mean().detach()
        s.losses["rows"] = len(x)
        return y.sum()

    f = case.fn(f)
    kept = []
    for i in range(4):
        y = f(case.x + i)
        kept.append(s.losses)
        yield y, kept


@program(states=2)
def list_of_shapes_made_anew_at_each_call(case: Case) -> Seen:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.shapes = nn.Linear(3, 2), []

        def forward(self, x):
            self.shapes = [tuple(x.shape)]
            y = self.linear(x)
            self.shapes.append(tuple(y.shape))
            return y

    m = case.on(Net())
    f = case.fn(m)
    for i in range(4):
        yield f(case.x + i), m.shapes


@program
def data_of_two_parameters_swapped(case: Case) -> Seen:
    one, two = nn.Parameter(case.x), nn.Parameter(case.x * 5)

    def f(x):
        kept = one.data
        one.data = two.data
        two.data = kept
        return (one * x).sum().detach()

    f = case.fn(f)
    for i in range(4):
        yield f(case.x + i), one, two
