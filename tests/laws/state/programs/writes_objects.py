"""L2: what a call changes in objects, variables and modes: at every call."""

import dataclasses
import enum
import types
from collections.abc import Iterator
from typing import Any

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("writes", "eager jit rows trace")
Seen = Iterator[Any]


@program(states=3)
def counter_on_an_object_that_wraps(case: Case) -> Seen:
    s = types.SimpleNamespace(step=0)

    def f(x):
        s.step = (s.step + 1) % 3
        return x * s.step

    f = case.fn(f)
    for _ in range(7):
        yield f(case.x), s.step


@program(each_call=True)
def counter_on_an_object_that_grows(case: Case) -> Seen:
    s = types.SimpleNamespace(step=0)

    def f(x):
        s.step += 1
        return x + 1

    f = case.fn(f)
    for _ in range(4):
        yield f(case.x), s.step


@program(states=3)
def counter_in_a_nonlocal(case: Case) -> Seen:
    calls = 0

    def f(x):
        nonlocal calls
        calls = (calls + 1) % 3
        return x * calls

    f = case.fn(f)
    for _ in range(6):
        yield f(case.x), calls
    calls = 1
    yield f(case.x), calls


TURN = 0


@program(states=2)
def counter_in_a_global(case: Case) -> Seen:
    global TURN
    TURN = 0

    def f(x):
        global TURN
        TURN = 1 - TURN
        return x * TURN

    f = case.fn(f)
    for _ in range(5):
        yield f(case.x), TURN


class Mode(enum.Enum):
    FIRST = 0
    LATER = 1


@program(states=2)
def enum_advanced(case: Case) -> Seen:
    s = types.SimpleNamespace(mode=Mode.FIRST)

    def f(x):
        if s.mode is Mode.FIRST:
            s.mode = Mode.LATER
            return x * 100
        return x

    f = case.fn(f)
    for _ in range(3):
        yield f(case.x), s.mode
    s.mode = Mode.FIRST
    yield f(case.x), s.mode
    yield f(case.x), s.mode


@program(states=2)
def attribute_deleted(case: Case) -> Seen:
    s = types.SimpleNamespace(once=5.0)

    def f(x):
        if hasattr(s, "once"):
            x = x * s.once
            del s.once
        return x

    f = case.fn(f)
    yield f(case.x), s
    yield f(case.x), s
    s.once = 5.0
    yield f(case.x), s
    yield f(case.x), s


@program(states=2)
def attribute_made_at_first(case: Case) -> Seen:
    class Owner:
        pass

    s = Owner()

    def f(x):
        if not hasattr(s, "ready"):
            s.ready = True
            return x * 10
        return x

    f = case.fn(f)
    yield f(case.x), s
    yield f(case.x), s
    del s.ready
    yield f(case.x), s
    yield f(case.x), s


@program(states=2)
def slot_written(case: Case) -> Seen:
    class Slotted:
        __slots__ = ("on",)

    s = Slotted()
    s.on = False

    def f(x):
        s.on = not s.on
        return x if s.on else -x

    f = case.fn(f)
    for _ in range(5):
        yield f(case.x), s.on


@program(states=2)
def class_attribute_written(case: Case) -> Seen:
    class Shared:
        turn = 0

    def f(x):
        Shared.turn = 1 - Shared.turn
        return x * Shared.turn

    f = case.fn(f)
    for _ in range(5):
        yield f(case.x), Shared.turn


@program(states=2)
def function_attribute_written(case: Case) -> Seen:
    def f(x):
        f.turn = 1 - f.turn
        return x * f.turn

    f.turn = 0
    wrapped = case.fn(f)
    for _ in range(5):
        yield wrapped(case.x), f.turn


@dataclasses.dataclass
class Meter:
    total: float = 0.0
    count: int = 0
    parts: list[Any] = dataclasses.field(default_factory=list)


@program(each_call=True)
def a_meter_of_sizes(case: Case) -> Seen:
    meter = Meter()

    def f(x):
        meter.total += x.numel() / 2
        meter.count += 1
        return x * meter.count

    f = case.fn(f)
    for n in (3, 2, 3, 2):
        yield f(case.x[:n]), meter


@program(states=2)
def a_new_object_at_each_call(case: Case) -> Seen:
    s = types.SimpleNamespace(last=Meter())
    before = s.last

    def f(x):
        s.last = Meter(total=1.0, parts=["a"])
        return x + s.last.total

    f = case.fn(f)
    for _ in range(3):
        yield f(case.x), s.last, s.last is before
        before = s.last
        s.last.parts.append("of the caller")


@program(states=2)
def a_tensor_kept_on_an_object(case: Case) -> Seen:
    s = types.SimpleNamespace(last=None, name="a")

    def f(x):
        y = x * 2
        s.last = y
        return y + 1

    f = case.fn(f)
    for i in range(4):
        yield f(case.x + i), s


@program(states=2)
def the_last_tensor_is_read_by_the_next_call(case: Case) -> Seen:
    s = types.SimpleNamespace(last=None)

    def f(x):
        y = x if s.last is None else x + s.last
        s.last = y
        return y * 2

    f = case.fn(f)
    for i in range(4):
        yield f(case.x + i), s.last
    s.last = None
    yield f(case.x), s.last


@program(states=2)
def the_result_is_the_kept_tensor(case: Case) -> Seen:
    s = types.SimpleNamespace(last=None)

    def f(x):
        s.last = x * 2
        return s.last

    f = case.fn(f)
    for i in range(3):
        y = f(case.x + i)
        yield y, y is s.last


@program
def attribute_of_a_tensor_is_set(case: Case) -> Seen:
    w = case.x

    def f(x):
        w.last = x.sum()
        w.length = len(x)
        return x * w

    f = case.fn(f)
    for k in range(4):
        w.last = w.length = None
        yield f(case.x + k), vars(w)


@program(states=2)
def attribute_of_parameters_that_appears(case: Case) -> Seen:
    m = case.linear()

    def f(x):
        for p in m.parameters():
            p.counted = True
        return m(x)

    f = case.fn(f)
    for _ in range(4):
        yield f(case.x), [p.counted for p in m.parameters()]
