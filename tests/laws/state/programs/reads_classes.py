"""L1: values that classes and their special methods give."""

import typing
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("reads", "jit rows")
Seen = Iterator[Any]


@program(states=3)
def class_attribute(case: Case) -> Seen:
    class Config:
        scale = 2.0

    f = case.fn(lambda x: x * Config.scale)
    for Config.scale in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def class_attribute_seen_through_an_instance(case: Case) -> Seen:
    class Layer:
        scale = 2.0

        def __call__(self, x):
            return x * self.scale

    layer = Layer()
    f = case.fn(lambda x: layer(x))
    yield f(case.x)
    Layer.scale = 3.0
    yield f(case.x)
    layer.scale = 4.0
    yield f(case.x)
    del layer.scale
    Layer.scale = 2.0
    yield f(case.x)


@program(states=3)
def attribute_that_a_subclass_shadows(case: Case) -> Seen:
    class Base:
        scale = 2.0

    class Own(Base):
        pass

    own = Own()
    f = case.fn(lambda x: x * own.scale)
    yield f(case.x)
    Own.scale = 3.0
    yield f(case.x)
    Base.scale = 7.0
    del Own.scale
    yield f(case.x)
    Base.scale = 2.0
    yield f(case.x)


@program(states=2)
def method_overridden_on_the_class(case: Case) -> Seen:
    class Layer:
        def apply(self, x):
            return x * 2

    layer, double = Layer(), Layer.apply
    f = case.fn(lambda x: layer.apply(x))
    yield f(case.x)
    Layer.apply = lambda self, x: x * 3
    yield f(case.x)
    yield f(case.x)
    Layer.apply = double
    yield f(case.x)


@program(states=3)
def method_overridden_on_the_instance(case: Case) -> Seen:
    class Layer(nn.Module):
        def forward(self, x):
            return self.act(x)

        def act(self, x):
            return x.relu()

    m = Layer()
    f = case.fn(lambda x: m(x))
    yield f(-case.x)
    m.act = torch.sigmoid
    yield f(-case.x)
    m.act = torch.tanh
    yield f(-case.x)
    del m.act
    yield f(-case.x)


@program(states=3)
def class_of_an_object(case: Case) -> Seen:
    class Double:
        def __call__(self, x):
            return x * 2

    class Triple:
        def __call__(self, x):
            return x * 3

    class Quadruple(Double):
        def __call__(self, x):
            return super().__call__(x) * 2

    layer: Any = Double()
    f = case.fn(lambda x: layer(x))
    for layer.__class__ in (Double, Triple, Quadruple, Double):
        yield f(case.x)


@program(states=2)
def bases_of_a_class(case: Case) -> Seen:
    class One:
        gain = 1.0

    class Two:
        gain = 2.0

    class Own(One):
        pass

    own = Own()
    f = case.fn(lambda x: x * own.gain)
    for base in (One, Two, Two, One):
        Own.__bases__ = (base,)
        yield f(case.x)


@program(states=2)
def protocol_that_is_checked_at_run_time(case: Case) -> Seen:
    @typing.runtime_checkable
    class Scales(typing.Protocol):
        def scale(self): ...

    class Layer:
        pass

    layer = Layer()
    f = case.fn(lambda x: x * layer.scale() if isinstance(layer, Scales) else x)
    yield f(case.x)
    yield f(case.x)
    Layer.scale = lambda self: 2.0
    yield f(case.x)
    yield f(case.x)
