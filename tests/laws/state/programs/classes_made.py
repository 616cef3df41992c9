"""Classes that a function makes: each call returns objects of its own class."""

import collections
import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("classes made")

Seen = Iterator[Any]


def _called(case: Case, f: Any) -> Seen:
    f, kinds = case.fn(f), []
    for i in range(4):
        made = f(case.x * i)
        kind = type(made)
        yield made, kind.__name__, kind in kinds, hasattr(kind, "changed")
        kind.changed = True
        kinds.append(kind)


@program
def object_of_a_class_made_inside(case: Case) -> Seen:
    def f(x):
        class Base:
            scale = 2

            def scaled(self):
                return self.y * self.scale

        class Result(Base):
            def scaled(self):
                return super().scaled() + 1

        made = Result()
        made.y = x
        made.z = made.scaled()
        return made

    yield from _called(case, f)
    f = case.fn(f)
    for i in range(3):
        yield f(case.x * i).scaled()


@program
def objects_of_one_class_made_inside(case: Case) -> Seen:
    def f(x):
        class Result:
            __slots__ = ("__weakref__", "y")

            def __init__(self, y):
                self.y = y

        return [Result(x), Result(x + 1), Result]

    f, before = case.fn(f), None
    for i in range(3):
        one, other, kind = f(case.x * i)
        yield one.y, other.y, type(one) is type(other) is kind, kind is before
        before = kind


@program
def object_of_a_class_made_by_type(case: Case) -> Seen:
    def f(x):
        made = type("Result", (), {"scale": 3})()
        made.y = x + 1
        return made

    yield from _called(case, f)


@program
def data_class_made_inside(case: Case) -> Seen:
    def f(x):
        @dataclasses.dataclass(frozen=True)
        class Result:
            y: torch.Tensor
            name: str | None = None
            parts: list = dataclasses.field(default_factory=list)

        return Result(x + 1)

    yield from _called(case, f)
    f = case.fn(f)
    for i in range(3):
        made = f(case.x * i)
        yield dataclasses.asdict(made), dataclasses.replace(made, name="a"), type(made)(1)
        yield repr(type(made)(1))[-30:], type(made)(1) == type(made)(1)
        try:
            made.name = "b"
        except dataclasses.FrozenInstanceError as error:
            yield str(error)


@program
def data_class_with_slots_made_inside(case: Case) -> Seen:
    def f(x):
        @dataclasses.dataclass(slots=True)
        class Result:
            y: torch.Tensor
            k: int = 3

        return Result(x + 1)

    yield from _called(case, f)


@program
def named_tuple_made_inside(case: Case) -> Seen:
    def f(x):
        return collections.namedtuple("Result", "a b")(x, x + 1)

    yield from _called(case, f)


@program
def typed_named_tuple_made_inside(case: Case) -> Seen:
    def f(x):
        class Result(typing.NamedTuple):
            a: torch.Tensor
            b: torch.Tensor
            c: int = 3

            def total(self):
                return self.a + self.b + self.c

        made = Result(x, x + 1)
        return {"one": made, "all": [made, made._replace(a=x * 2)]}

    f, before = case.fn(f), None
    for i in range(3):
        made = f(case.x * i)
        kind = type(made["one"])
        yield made, made["one"].total(), kind is before, type(made["all"][1]) is kind
        before = kind


@program
def module_of_a_class_made_inside(case: Case) -> Seen:
    def f(x):
        class Scaled(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(3, device=x.device))

            def forward(self, x):
                return x * self.weight

        made = Scaled()
        made(x).sum().backward()
        return made

    yield from _called(case, f)


@program
def dict_of_a_class_made_inside(case: Case) -> Seen:
    def f(x):
        class Result(dict):
            pass

        return Result(y=x)

    yield from _called(case, f)


@program
def error_of_a_class_made_inside(case: Case) -> Seen:
    def f(x):
        class Ended(Exception):
            pass

        return Ended("done", x)

    yield from _called(case, f)


@program(each_call=True)
def member_of_an_enum_made_inside(case: Case) -> Seen:
    def f(x):
        class Phase(enum.Enum):
            TRAIN = 1
            TEST = 2

        return Phase.TRAIN, x + 1

    f, kinds = case.fn(f), []
    for i in range(4):
        phase, y = f(case.x * i)
        yield phase, y, type(phase) in kinds
        kinds.append(type(phase))


@program(each_call=True)
def object_of_a_class_that_registers_itself_and_is_returned(case: Case) -> Seen:
    names = []

    class Base:
        def __init_subclass__(cls):
            names.append(cls.__name__)

    def f(x):
        class Result(Base):
            pass

        made = Result()
        made.y = x
        return made

    yield from _called(case, f)
    yield len(names)


@program
def class_that_is_a_default_factory(case: Case) -> Seen:
    class Entry:
        pass

    entries = collections.defaultdict(Entry)

    def f(x):
        own = collections.defaultdict(entries.default_factory)
        own["a"].y = x
        return own["a"]

    f = case.fn(f)
    for i in range(3):
        made = f(case.x * i)
        yield made, type(made) is Entry


@program(each_call=True)
def member_of_an_enum_made_inside_in_an_object(case: Case) -> Seen:
    def f(x):
        class Phase(enum.Flag):
            TRAIN = 1
            TEST = 2

        return types.SimpleNamespace(phase=Phase.TRAIN, x=x)

    f, kinds = case.fn(f), []
    for i in range(4):
        made = f(case.x * i)
        yield made.x, made.phase, type(made.phase) in kinds
        kinds.append(type(made.phase))


@program
def class_made_inside_that_a_cache_keeps(case: Case) -> Seen:
    @functools.lru_cache
    def kind_of(size):
        class Result:
            parts = size

        return Result

    @functools.cache
    def tuples_of(names):
        return collections.namedtuple("Pair", names)

    def f(x):
        made = kind_of(2)()
        made.y = x
        return made, tuples_of("a b")(x, x + 1)

    f = case.fn(f)
    for i in range(4):
        made, pair = f(case.x * i)
        yield made.y, pair, type(made) is kind_of(2), type(pair) is tuples_of("a b")


@program
def class_found_in_an_annotation(case: Case) -> Seen:
    class Result:
        pass

    kinds = list[Result], Result | None

    def f(x):
        found = [typing.get_args(one)[0]() for one in kinds]
        found[0].y = x
        return found

    f = case.fn(f)
    for i in range(3):
        found = f(case.x * i)
        yield found[0].y, [type(one) is Result for one in found]
