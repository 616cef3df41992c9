"""L1: values found by the language in unusual ways: classes, threads, coroutines."""

import asyncio
import collections
import concurrent.futures
import enum
import functools
import inspect
import operator
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("reads", "jit rows")
Seen = Iterator[Any]


class Config:
    def __init__(self, **values):
        self.__dict__.update(values)


def _gains(case: Case, f: Any, owner: Any) -> Seen:
    """Calls with `owner.gain` of 2, 2, 3, 5 and 2."""
    f = case.fn(f)
    for owner.gain in (2.0, 2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def slots_gone_through(case: Case) -> Seen:
    class Slotted:
        __slots__ = ("first", "gain")

    s = Slotted()
    s.first, s.gain = 1.0, 2.0
    yield from _gains(case, lambda x: x * sum(getattr(s, n) for n in s.__slots__), s)


@program(states=4)
def annotations_and_signature_of_a_function(case: Case) -> Seen:
    def helper(x, gain: "2" = 1):
        return x

    def f(x):
        return x * len(inspect.signature(helper).parameters) + len(helper.__annotations__)

    f = case.fn(f)
    yield f(case.x)
    helper.__annotations__["more"] = "3"
    yield f(case.x)
    yield f(case.x)
    del helper.__annotations__["more"]
    yield f(case.x)


@program(states=4)
def name_and_text_of_a_class(case: Case) -> Seen:
    class Layer:
        """A layer."""

    layer = Layer()
    f = case.fn(lambda x: x * len(type(layer).__name__) + len(Layer.__doc__))
    yield f(case.x)
    Layer.__name__ = "LongerName"
    yield f(case.x)
    yield f(case.x)
    Layer.__name__ = "Layer"
    yield f(case.x)


@program(each_call=True)
def subclasses_of_a_class(case: Case) -> Seen:
    class Base:
        pass

    kept = [type("A", (Base,), {"gain": 2.0})]
    f = case.fn(lambda x: x * sum(k.gain for k in Base.__subclasses__()))
    yield f(case.x)
    kept.append(type("B", (Base,), {"gain": 3.0}))
    yield f(case.x)
    kept[0].gain = 10.0
    yield f(case.x)


@program(states=2)
def class_registered_as_a_virtual_subclass(case: Case) -> Seen:
    class Own:
        pass

    class Kind(collections.abc.Sized):
        pass

    f = case.fn(lambda x: x if isinstance(Own(), Kind) else -x)
    yield f(case.x)
    yield f(case.x)
    Kind.register(Own)
    yield f(case.x)
    yield f(case.x)


@program(states=3)
def missing_key_of_a_dict_subclass(case: Case) -> Seen:
    class Default(dict):
        gain = 2.0

        def __missing__(self, key):
            return self.gain

    table = Default()
    yield from _gains(case, lambda x: x * table["any"], table)


@program(states=3)
def attribute_of_a_number_subclass(case: Case) -> Seen:
    class Level(int):
        gain = 2.0

    level = Level(3)
    yield from _gains(case, lambda x: x * level.gain + level, level)


@program(states=3)
def string_subclass_with_a_unit(case: Case) -> Seen:
    class Named(str):
        pass

    s = types.SimpleNamespace(name=Named("neg"))
    s.name.gain = 2.0
    yield from _gains(case, lambda x: getattr(torch, s.name)(x) * s.name.gain, s.name)


class Priority(enum.IntEnum):
    LOW = 1
    HIGH = 3


@program(states=2)
def integer_enum_and_its_integer(case: Case) -> Seen:
    s = types.SimpleNamespace(p=Priority.LOW)
    f = case.fn(lambda x: x * s.p + (10 if isinstance(s.p, Priority) else 0))
    for s.p in (Priority.LOW, 1, 1, Priority.LOW):
        yield f(case.x)


@program(states=3)
def partial_method(case: Case) -> Seen:
    class Layer:
        gain = 2.0

        def scale(self, x, by):
            return x * by * self.gain

        double = functools.partialmethod(scale, by=2.0)

    layer = Layer()
    yield from _gains(case, lambda x: layer.double(x), layer)


@program(states=3)
def generator_pipeline_made_inside(case: Case) -> Seen:
    cfg = Config(gain=2.0)

    def scaled(parts):
        for part in parts:
            yield part * cfg.gain

    yield from _gains(case, lambda x: sum(scaled(scaled(iter([x, x + 1])))), cfg)


@program(states=3)
def comprehension_and_nested_function(case: Case) -> Seen:
    cfg = Config(gain=2.0)

    def f(x):
        def inner():
            return [(lambda: cfg.gain)() for _ in range(2)]

        return x * sum({i: g for i, g in enumerate(inner())}.values())  # noqa: C416

    yield from _gains(case, f, cfg)


@program(states=3)
def coroutine_run_inside(case: Case) -> Seen:
    cfg = Config(gain=2.0)

    async def scale(x):
        return x * cfg.gain

    def f(x):
        step = scale(x)
        try:
            step.send(None)
        except StopIteration as done:
            return done.value

    yield from _gains(case, f, cfg)


@program(states=3, each_call=True)
def value_computed_in_another_thread(case: Case) -> Seen:
    cfg, pool = Config(gain=2.0), concurrent.futures.ThreadPoolExecutor(1)
    case.undo(pool.shutdown)
    pool.submit(int).result()

    def read():
        return cfg.gain

    yield from _gains(case, lambda x: x * pool.submit(read).result(), cfg)


@program(states=3)
def value_local_to_a_thread(case: Case) -> Seen:
    local = threading.local()
    local.gain = 2.0
    yield from _gains(case, lambda x: x * local.gain, local)


@program(each_call=True)
def awaited_in_an_event_loop(case: Case) -> Seen:
    cfg = Config(gain=2.0)

    async def read():
        await asyncio.sleep(0)
        return cfg.gain

    def f(x):
        loop = asyncio.new_event_loop()
        try:
            return x * loop.run_until_complete(read())
        finally:
            loop.close()

    yield from _gains(case, f, cfg)


@program(states=3)
def attribute_of_the_super_class(case: Case) -> Seen:
    class Base:
        gain = 2.0

        def scale(self, x):
            return x * super().__getattribute__("gain")

    class Own(Base):
        def scale(self, x):
            return super().scale(x) + super().gain

    own = Own()
    f = case.fn(lambda x: own.scale(x))
    for Base.gain in (2.0, 2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def value_behind_a_proxy_object(case: Case) -> Seen:
    class Lazy:
        def __init__(self, make):
            object.__setattr__(self, "_make", make)

        def __getattr__(self, name):
            return getattr(object.__getattribute__(self, "_make")(), name)

    cfg = Config(gain=2.0)
    lazy = Lazy(lambda: cfg)
    f = case.fn(lambda x: x * lazy.gain)
    for cfg.gain in (2.0, 2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def module_buffers_dict_gone_through(case: Case) -> Seen:
    m = nn.Module()
    m.gains = {"a": 2.0}
    m.gain = 2.0
    yield from _gains(case, lambda x: x * m.__dict__["gain"] * m.gains["a"], m)


@program(states=3)
def number_of_something_counted_lazily(case: Case) -> Seen:
    class Lazy:
        def __init__(self):
            self.items = [1]

        def __len__(self):
            return len(self.items)

        def __length_hint__(self):
            return 7

    lazy = Lazy()
    f = case.fn(lambda x: x * operator.length_hint(lazy) + (5 if lazy else 6))
    yield f(case.x)
    lazy.items.append(2)
    yield f(case.x)
    lazy.items.clear()
    yield f(case.x)


@program(states=3)
def sorted_by_comparison_methods(case: Case) -> Seen:
    @functools.total_ordering
    class Item:
        def __init__(self, rank, gain):
            self.rank, self.gain = rank, gain

        def __eq__(self, other):
            return self.rank == other.rank

        def __lt__(self, other):
            return self.rank < other.rank

        __hash__ = None  # type: ignore[assignment]

    items = [Item(1, 2.0), Item(2, 3.0)]
    f = case.fn(lambda x: x * min(items).gain + max(items).gain)
    yield f(case.x)
    items[0].rank = 9
    yield f(case.x)
    items[1].gain = 7.0
    yield f(case.x)


@program(states=3)
def subclasses_that_appear_late(case: Case) -> Seen:
    class Base:
        gain = 1.0

    class A(Base):
        gain = 2.0

    f = case.fn(lambda x: x * sum(k.gain for k in Base.__subclasses__()))
    for _ in range(3):
        yield f(case.x)

    class B(A, Base):
        gain = 3.0

    yield f(case.x)
    B.gain = 5.0
    yield f(case.x), A


@program(states=2)
def imported_module_that_is_replaced(case: Case) -> Seen:
    def module(gain):
        made = types.ModuleType("settings_of_the_battery")
        made.gain = gain
        return made

    def f(x):
        import settings_of_the_battery

        return x * settings_of_the_battery.gain

    f = case.fn(f)
    try:
        for one in [module(2.0)] * 3 + [module(3.0)]:
            sys.modules["settings_of_the_battery"] = one
            yield f(case.x)
    finally:
        del sys.modules["settings_of_the_battery"]


_REGISTRY: dict[str, Any] = {}


@program(states=3)
def registry_whose_function_is_called_at_once(case: Case) -> Seen:
    _REGISTRY.clear()
    _REGISTRY.update(a=lambda x: x + 1, b=lambda x: x * 3)
    chosen = types.SimpleNamespace(name="a")
    f = case.fn(lambda x: _REGISTRY[chosen.name](x))
    for i in range(6):
        chosen.name = "a" if i < 2 else "b"
        if i == 4:
            _REGISTRY["b"] = lambda x: x * 5
        yield f(case.x)
