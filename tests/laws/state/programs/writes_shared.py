"""L2: objects made anew, kept, shared by two names, or changing places."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("writes", "jit rows")
Seen = Iterator[Any]


class Config:
    def __init__(self, **values):
        self.__dict__.update(values)


@program(states=4)
def record_made_at_each_call(case: Case) -> Seen:
    s, kept = Config(record=None), []

    def f(x):
        s.record = {"y": x * 2, "tags": ["a"]}
        return x + 1

    f = case.fn(f)
    s.record = {"y": case.x, "tags": ["a"]}
    for i in range(4):
        y = f(case.x + i)
        s.record["tags"].append(str(i))
        kept.append(s.record)
        yield y, kept


@program(states=2)
def argument_kept_by_the_function(case: Case) -> Seen:
    s = Config(x=None)

    def f(x):
        s.x = x
        return x * 2

    f = case.fn(f)
    for i in range(4):
        x = case.x + i
        y = f(x)
        yield y, s.x is x


@program(states=2)
def containers_of_arguments_kept(case: Case) -> Seen:
    s = Config(batch=None)

    def f(batch):
        s.batch = batch
        return batch["x"] * 2

    f = case.fn(f)
    for i in range(4):
        batch = {"x": case.x + i}
        y = f(batch)
        yield y, s.batch is batch, s.batch["x"] is batch["x"]


@program(states=2)
def modules_that_change_places(case: Case) -> Seen:
    m = case.on(nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]))

    def f(x):
        m[0], m[1] = m[1], m[0]
        return m[0](x)

    f = case.fn(f)
    for i in range(5):
        yield f(case.x + i), m


@program(states=2)
def attributes_that_change_places(case: Case) -> Seen:
    s = Config(a=Config(gain=2.0), b=Config(gain=3.0))

    def f(x):
        s.a, s.b = s.b, s.a
        return x * s.a.gain

    f = case.fn(f)
    for i in range(5):
        yield f(case.x + i), s.a.gain
        s.b.gain += 0.0


@program(states=2)
def two_names_of_one_list(case: Case) -> Seen:
    shared = [1.0]
    s = Config(a=shared, b=shared)

    def f(x):
        s.a[0] = 3.0 - s.a[0]
        return x * s.b[0]

    f = case.fn(f)
    for i in range(4):
        yield f(case.x + i), s.a is s.b, s


@program(states=4)
def one_list_becomes_two(case: Case) -> Seen:
    shared = [1.0]
    s = Config(a=shared, b=shared)

    def f(x):
        s.a[0] = 2.0
        y = x * s.b[0]
        s.a[0] = 1.0
        return y

    f = case.fn(f)
    yield f(case.x), s
    s.b = [1.0]
    yield f(case.x), s
    yield f(case.x), s
    s.b = s.a
    yield f(case.x), s


@program(states=2)
def one_dict_as_two_arguments(case: Case) -> Seen:
    def f(x, a, b):
        a["gain"] = 2.0
        return x * b.get("gain", 1.0)

    f = case.fn(f)
    for same in (True, False, False, True):
        a: dict[str, float] = {}
        b = a if same else {}
        yield f(case.x, a, b), a, b


@program(states=3)
def argument_that_is_also_state(case: Case) -> Seen:
    s = Config(table={"gain": 2.0})

    def f(x, table):
        table["gain"] = 5.0
        return x * s.table["gain"]

    f = case.fn(f)
    yield f(case.x, s.table), s
    s.table["gain"] = 2.0
    yield f(case.x, {"gain": 2.0}), s
    yield f(case.x, s.table), s


@program
def list_argument_returned_after_it_has_grown(case: Case) -> Seen:
    def f(parts):
        parts.append(parts[0] * 2)
        return {"parts": parts, "last": parts[-1]}

    f = case.fn(f)
    for i in range(3):
        parts = [case.x + i]
        made = f(parts)
        yield made, made["parts"] is parts, made["last"] is parts[-1], parts


@program(states=2)
def list_argument_that_is_a_list_of_the_state_later(case: Case) -> Seen:
    kept = [1.0]

    def f(x, parts):
        parts.append(2.0)
        return x * sum(kept)

    f = case.fn(f)
    yield f(case.x, [1.0]), kept
    yield f(case.x, [1.0]), kept
    yield f(case.x, kept), kept
    kept.pop()
    yield f(case.x, [1.0]), kept


@program
def dict_argument_filled_where_values_are_read(case: Case) -> Seen:
    def f(x, out):
        out["sum"] = float(x.sum())
        return x * out["sum"]

    f = case.fn(f, specialize=True) if case.mode in ("jit", "rows") else case.fn(f)
    for _ in range(3):
        out: dict[str, float] = {}
        yield f(case.x, out), out
