"""L1: values that are equal and yet different, and values of classes without a `__dict__`."""

import array
import dataclasses
import datetime
import decimal
import fractions
import math
import pathlib
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("reads", "jit rows")
Seen = Iterator[Any]


@program(states=3)
def one_and_true_and_one_point_zero(case: Case) -> Seen:
    cfg: dict[str, Any] = {"value": 1}
    f = case.fn(lambda x: (x.long() * cfg["value"], type(cfg["value"]).__name__))
    for cfg["value"] in (1, True, 1.0, 1):
        yield f(case.x)


@program(states=2)
def zero_and_negative_zero(case: Case) -> Seen:
    s = types.SimpleNamespace(zero=0.0)
    f = case.fn(lambda x: torch.full_like(x, s.zero).reciprocal())
    for s.zero in (0.0, -0.0, -0.0, 0.0):
        yield f(case.x)


@program(states=2)
def not_a_number_is_equal_to_itself(case: Case) -> Seen:
    s = types.SimpleNamespace(fill=float("nan"))
    f = case.fn(lambda x: torch.nan_to_num(x * s.fill, nan=-1.0))
    for s.fill in (float("nan"), math.nan, 2.0, float("nan")):
        yield f(case.x)


@program(states=2)
def equal_keys_of_another_type(case: Case) -> Seen:
    table: dict[Any, str] = {1: "one"}
    f = case.fn(lambda x: x.long() * next(iter(table)))
    for key in (1, 1.0, 1.0, 1):
        table.clear()
        table[key] = "one"
        yield f(case.x)


@program(states=2)
def equal_items_of_a_tuple_of_another_type(case: Case) -> Seen:
    s = types.SimpleNamespace(pair=(1, 2))
    f = case.fn(lambda x: x.long() * s.pair[0])
    for s.pair in ((1, 2), (1.0, 2.0), (1.0, 2.0), (1, 2)):
        yield f(case.x)


@program(states=3)
def string_and_string_enum_like_values(case: Case) -> Seen:
    s = types.SimpleNamespace(mode="sum")
    f = case.fn(lambda x: getattr(x, s.mode)())
    for s.mode in ("sum", "mean", "prod", "sum"):
        yield f(case.x)


@dataclasses.dataclass
class Options:
    scale: float = 1.0
    layers: list[int] = dataclasses.field(default_factory=lambda: [1, 2])


@program(states=3)
def a_dataclass_and_its_list(case: Case) -> Seen:
    options = Options()
    f = case.fn(lambda x: x * options.scale + sum(options.layers))
    yield f(case.x)
    options.layers.append(3)
    yield f(case.x)
    options.scale = 2.0
    yield f(case.x)


@program(states=4)
def an_equal_dataclass_that_is_changed_later(case: Case) -> Seen:
    s = types.SimpleNamespace(options=Options())
    f = case.fn(lambda x: x * s.options.scale)
    yield f(case.x)
    s.options = Options()
    yield f(case.x)
    s.options.scale = 3.0
    yield f(case.x)
    s.options = Options()
    yield f(case.x)


@program(states=3)
def an_equal_list_that_is_changed_later(case: Case) -> Seen:
    s = types.SimpleNamespace(gains=[1.0, 2.0])
    f = case.fn(lambda x: x * s.gains[0])
    yield f(case.x)
    s.gains = [1.0, 2.0]
    yield f(case.x)
    s.gains[0] = 5.0
    yield f(case.x)


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float
    name: str = "a"


@program(states=3)
def a_frozen_dataclass_replaced(case: Case) -> Seen:
    s = types.SimpleNamespace(options=Frozen(1.0))
    f = case.fn(lambda x: x * s.options.scale + len(s.options.name))
    yield f(case.x)
    s.options = dataclasses.replace(s.options, scale=4.0)
    yield f(case.x)
    s.options = dataclasses.replace(s.options, name="abc")
    yield f(case.x)
    s.options = Frozen(1.0)
    yield f(case.x)


@dataclasses.dataclass(eq=False)
class Compared:
    """Equal to another one by its name alone."""

    name: str
    gain: float

    def __eq__(self, other):
        return self.name == other.name

    def __hash__(self):
        return hash(self.name)


@program(states=3)
def an_equal_object_with_another_value(case: Case) -> Seen:
    s = types.SimpleNamespace(part=Compared("a", 1.0))
    f = case.fn(lambda x: x * s.part.gain)
    for gain in (1.0, 2.0, 3.0, 1.0):
        s.part = Compared("a", gain)
        yield f(case.x)


class Range(NamedTuple):
    low: float
    high: float


@program(states=3)
def a_named_tuple_replaced(case: Case) -> Seen:
    s = types.SimpleNamespace(range=Range(1.5, 2.5))
    f = case.fn(lambda x: x.clamp(s.range.low, s.range.high))
    yield f(case.x)
    s.range = s.range._replace(low=2.0)
    yield f(case.x)
    s.range = Range(0.0, 1.0)
    yield f(case.x)
    s.range = Range(1.5, 2.5)
    yield f(case.x)


class Slotted:
    __slots__ = ("scale", "shift")

    def __init__(self):
        self.scale, self.shift = 2.0, 0.0


@program(states=3)
def slots(case: Case) -> Seen:
    s = Slotted()
    f = case.fn(lambda x: x * s.scale + s.shift)
    yield f(case.x)
    s.scale = 3.0
    yield f(case.x)
    s.shift = 1.0
    yield f(case.x)
    s.scale, s.shift = 2.0, 0.0
    yield f(case.x)


class MoreSlots(Slotted):
    __slots__ = ("__private", "extra")

    def __init__(self):
        super().__init__()
        self.__private = 1.0

    def set(self, value):
        self.__private = value

    def apply(self, x):
        return x * self.__private + (self.extra if hasattr(self, "extra") else 0.0)


@program(states=3)
def private_and_missing_slots_of_a_subclass(case: Case) -> Seen:
    s = MoreSlots()
    f = case.fn(lambda x: s.apply(x))
    yield f(case.x)
    s.extra = 10.0
    yield f(case.x)
    s.set(5.0)
    yield f(case.x)
    del s.extra
    s.set(1.0)
    yield f(case.x)


@dataclasses.dataclass(slots=True)
class SlottedOptions:
    scale: float = 2.0


@program(states=3)
def a_dataclass_with_slots(case: Case) -> Seen:
    s = SlottedOptions()
    f = case.fn(lambda x: x * s.scale)
    for s.scale in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def an_array_of_numpy(case: Case) -> Seen:
    table = np.array([1.0, 2.0, 3.0])
    f = case.fn(lambda x: x * float(table[1]))
    for table[1] in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def an_array_of_numpy_made_a_tensor(case: Case) -> Seen:
    table = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    f = case.fn(lambda x: x + torch.tensor(table, device=x.device))
    yield f(case.x)
    table[0] = 7.0
    yield f(case.x)
    table *= 2
    yield f(case.x)


@program(states=3)
def a_view_of_an_array_of_numpy(case: Case) -> Seen:
    base = np.arange(6.0)
    view = base[1::2]
    f = case.fn(lambda x: x * float(view.sum()))
    yield f(case.x)
    base[3] = 10.0
    yield f(case.x)
    base[:] = 1.0
    yield f(case.x)


@program(states=3)
def an_object_array_and_a_structured_array(case: Case) -> Seen:
    objects = np.array([{"gain": 2.0}, None], dtype=object)
    records = np.zeros(2, dtype=[("gain", "f8")])
    f = case.fn(lambda x: x * objects[0]["gain"] + float(records["gain"][1]))
    yield f(case.x)
    objects[0]["gain"] = 3.0
    yield f(case.x)
    records["gain"][1] = 1.0
    yield f(case.x)


@program(states=3)
def scalars_of_numpy(case: Case) -> Seen:
    s = types.SimpleNamespace(gain=np.float64(2.0))
    f = case.fn(lambda x: x * float(s.gain))
    for s.gain in (np.float64(2.0), np.float32(3.0), np.int64(4), np.float64(2.0)):
        yield f(case.x)


@program(states=3)
def an_array_of_the_array_module(case: Case) -> Seen:
    values = array.array("d", [1.0, 2.0])
    f = case.fn(lambda x: x * values[0] + len(values))
    yield f(case.x)
    values[0] = 4.0
    yield f(case.x)
    values.append(1.0)
    yield f(case.x)


@program(states=3)
def a_memoryview(case: Case) -> Seen:
    own = bytearray(b"\x01\x02")
    view = memoryview(own)
    f = case.fn(lambda x: x * view[0])
    for own[0] in (1, 2, 3, 1):
        yield f(case.x)


@program(states=4)
def numbers_of_the_standard_library(case: Case) -> Seen:
    s = types.SimpleNamespace(gain=fractions.Fraction(1, 2))
    f = case.fn(lambda x: x * float(s.gain))
    for s.gain in (fractions.Fraction(1, 2), decimal.Decimal("0.25"), fractions.Fraction(3), 2):
        yield f(case.x)


@program(states=3)
def dates_and_paths(case: Case) -> Seen:
    s = types.SimpleNamespace(day=datetime.timedelta(days=1), path=pathlib.PurePath("a/b"))
    f = case.fn(lambda x: x * s.day.days + len(s.path.parts))
    yield f(case.x)
    s.day = datetime.timedelta(days=3)
    yield f(case.x)
    s.path = pathlib.PurePath("a/b/c")
    yield f(case.x)


@program(states=3)
def dtype_and_shape_and_slice_as_values(case: Case) -> Seen:
    s = types.SimpleNamespace(dtype=torch.float32, shape=(3, 1), part=slice(0, 2))
    f = case.fn(lambda x: x.to(s.dtype).reshape(s.shape)[s.part])
    yield f(case.x)
    s.dtype = torch.int32
    yield f(case.x)
    s.part = slice(None, None, 2)
    yield f(case.x)


@program(states=2)
def a_range_and_none(case: Case) -> Seen:
    s = types.SimpleNamespace(steps=range(2), mask=None)
    f = case.fn(lambda x: x * len(s.steps) if s.mask is None else x * 0)
    yield f(case.x)
    s.mask = False
    yield f(case.x)
    s.mask = None
    yield f(case.x)


@program(states=3)
def complex_and_big_integers(case: Case) -> Seen:
    s = types.SimpleNamespace(z=1 + 2j, n=2**70)
    f = case.fn(lambda x: x * s.z.imag + (s.n >> 69))
    yield f(case.x)
    s.z = 1 - 2j
    yield f(case.x)
    s.n = 2**71
    yield f(case.x)
