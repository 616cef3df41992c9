"""L1: values that special methods, properties and descriptors give."""

import functools
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional as F

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("reads", "jit rows")
Seen = Iterator[Any]


@program(states=3)
def hidden_state_of_getattr(case: Case) -> Seen:
    class Config:
        def __init__(self):
            self.__dict__["_own"] = {"scale": 2.0}

        def __getattr__(self, name):
            try:
                return self.__dict__["_own"][name]
            except KeyError:
                raise AttributeError(name) from None

        def __setattr__(self, name, value):
            self._own[name] = value

    cfg = Config()
    f = case.fn(lambda x: x * cfg.scale)
    for cfg.scale in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def hidden_state_of_getattribute(case: Case) -> Seen:
    hidden = {"gain": 2.0}

    class Config:
        def __getattribute__(self, name):
            return hidden[name] if name in hidden else object.__getattribute__(self, name)

    cfg: Any = Config()
    f = case.fn(lambda x: x * cfg.gain)
    for hidden["gain"] in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def hidden_state_of_item_access(case: Case) -> Seen:
    class Table:
        def __init__(self):
            self._rows = [1.0, 2.0]

        def __getitem__(self, i):
            return self._rows[i]

        def __len__(self):
            return len(self._rows)

        def __iter__(self):
            return iter(self._rows)

        def __contains__(self, value):
            return value in self._rows

        def __reversed__(self):
            return reversed(self._rows)

    table = Table()
    f = case.fn(
        lambda x: x * table[0] + len(table) + sum(table) + (9.0 in table) + next(reversed(table))
    )
    yield f(case.x)
    table._rows[0] = 9.0
    yield f(case.x)
    table._rows.append(5.0)
    yield f(case.x)


@program(states=2)
def hidden_state_of_truth(case: Case) -> Seen:
    class Switch:
        def __init__(self):
            self._votes = 1

        def __bool__(self):
            return self._votes > 0

    switch = Switch()
    f = case.fn(lambda x: x if switch else -x)
    for switch._votes in (1, 0, 0, 1):
        yield f(case.x)


@program(states=2)
def hidden_state_of_a_context_manager(case: Case) -> Seen:
    class Mode:
        def __init__(self):
            self._on, self.gain = True, 1.0

        def __enter__(self):
            self.gain = 2.0 if self._on else 1.0
            return self

        def __exit__(self, *error):
            self.gain = 1.0

    mode = Mode()

    def f(x):
        with mode as m:
            return x * m.gain

    f = case.fn(f)
    for mode._on in (True, False, False, True):
        yield f(case.x), mode


@program(states=3)
def hidden_state_of_a_descriptor(case: Case) -> Seen:
    class Option:
        def __init__(self, value):
            self.value = value

        def __get__(self, owner, kind):
            return self.value

    class Layer:
        gain = Option(2.0)

    layer, option = Layer(), Layer.__dict__["gain"]
    f = case.fn(lambda x: x * layer.gain)
    for option.value in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def data_descriptor_that_keeps_values_elsewhere(case: Case) -> Seen:
    values: dict[int, float] = {}

    class Stored:
        def __get__(self, owner, kind=None):
            return values[id(owner)]

        def __set__(self, owner, value):
            values[id(owner)] = value

    class Layer:
        gain = Stored()

    layer = Layer()
    layer.gain = 2.0
    f = case.fn(lambda x: x * layer.gain)
    for layer.gain in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def property_of_two_attributes(case: Case) -> Seen:
    class Schedule:
        def __init__(self):
            self.base, self.step = 2.0, 0

        @property
        def gain(self):
            return self.base / (self.step + 1)

    schedule = Schedule()
    f = case.fn(lambda x: x * schedule.gain)
    yield f(case.x)
    schedule.step = 1
    yield f(case.x)
    schedule.base = 4.0
    yield f(case.x)
    schedule.base, schedule.step = 2.0, 0
    yield f(case.x)


@program(states=4)
def cached_property_dropped(case: Case) -> Seen:
    class Layer:
        width = 2

        @functools.cached_property
        def gain(self):
            return self.width * 1.5

    layer = Layer()
    f = case.fn(lambda x: x * layer.gain)
    yield f(case.x), vars(layer)
    layer.width = 4
    yield f(case.x), vars(layer)
    del layer.gain
    yield f(case.x), vars(layer)
    yield f(case.x), vars(layer)


@program(states=3)
def hidden_state_of_comparison_and_hash(case: Case) -> Seen:
    class Version:
        def __init__(self, n):
            self.n = n

        def __eq__(self, other):
            return self.n == other.n

        def __lt__(self, other):
            return self.n < other.n

        def __hash__(self):
            return 1

    a, b = Version(1), Version(1)
    f = case.fn(lambda x: x * (2 if a == b else 3) + (1 if a < b else 0))
    for b.n in (1, 2, 0, 1):
        yield f(case.x)


@program(states=3)
def hidden_state_of_arithmetic(case: Case) -> Seen:
    class Gain:
        value = 2.0

        def __rmul__(self, other):
            return other * self.value

        def __float__(self):
            return self.value

        def __index__(self):
            return int(self.value)

    gain = Gain()
    f = case.fn(lambda x: gain.__rmul__(x) + float(gain) + [10, 20, 30, 40, 50, 60][gain])
    for gain.value in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=2)
def hidden_state_of_text(case: Case) -> Seen:
    class Name:
        short = "relu"

        def __str__(self):
            return self.short

        def __format__(self, spec):
            return self.short

    name = Name()
    f = case.fn(lambda x: getattr(torch, f"{name}")(x) + len(str(name)))
    for name.short in ("relu", "neg", "neg", "relu"):
        yield f(case.x)


@program(states=3)
def registry_of_subclasses(case: Case) -> Seen:
    class Stage:
        known: dict[str, Any] = {}

        def __init_subclass__(cls):
            cls.known[cls.__name__] = cls

    class Double(Stage):
        def run(self, x):
            return x * 2

    def f(x):
        for kind in Stage.known.values():
            x = kind().run(x)
        return x

    f = case.fn(f)
    yield f(case.x)
    type("Shift", (Stage,), {"run": lambda self, x: x + 1})
    yield f(case.x)
    del Stage.known["Double"]
    yield f(case.x)


@program(states=3)
def metaclass_attribute_and_class_call(case: Case) -> Seen:
    class Meta(type):
        gain = 2.0

        def __call__(cls, x):
            return x * cls.gain

    class Layer(metaclass=Meta):
        pass

    f = case.fn(lambda x: Layer(x))
    for Meta.gain in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def singleton(case: Case) -> Seen:
    class Settings:
        _only = None

        def __new__(cls):
            if cls._only is None:
                cls._only = super().__new__(cls)
                cls._only.gain = 2.0
            return cls._only

    f = case.fn(lambda x: x * Settings().gain)
    for Settings().gain in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def weakly_held_object(case: Case) -> Seen:
    import weakref

    class Owner:
        gain = 2.0

    owner = Owner()
    ref, table = weakref.ref(owner), weakref.WeakValueDictionary(a=owner)
    f = case.fn(lambda x: x * ref().gain + table["a"].gain)
    for owner.gain in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def generic_alias_and_type_attributes(case: Case) -> Seen:
    class Box:
        kind: Any = float

    box = Box()
    f = case.fn(lambda x: x * box.kind("3") if box.kind is not str else x)
    for box.kind in (float, int, str, float):
        yield f(case.x)


@program(states=3)
def module_type_with_getattr(case: Case) -> Seen:
    own = {"gain": 2.0}
    lazy = types.ModuleType("lazy_settings")
    lazy.__getattr__ = lambda name: own[name]  # type: ignore[method-assign]
    f = case.fn(lambda x: x * lazy.gain)
    for own["gain"] in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=2)
def function_of_pytorch_that_is_replaced_below_a_module(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x))
    for _ in range(3):
        yield f(case.x)
    kept = F.linear
    F.linear = lambda x, weight, bias=None: kept(x, weight) * 3
    try:
        yield f(case.x)
    finally:
        F.linear = kept
    yield f(case.x)


@program(states=3)
def method_that_is_added_to_tensors(case: Case) -> Seen:
    f = case.fn(lambda x: x.of_the_battery() if hasattr(x, "of_the_battery") else x)
    for _ in range(3):
        yield f(case.x)
    try:
        torch.Tensor.of_the_battery = lambda self: self * 2
        yield f(case.x)
        torch.Tensor.of_the_battery = lambda self: self * 3
        yield f(case.x)
    finally:
        del torch.Tensor.of_the_battery
    yield f(case.x)
