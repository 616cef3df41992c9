"""L2: what a call changes in containers: at every call, also when nothing is traced."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("writes", "eager jit rows trace")
Seen = Iterator[Any]


@program(each_call=True)
def append_of_a_string(case: Case) -> Seen:
    log: list[str] = []

    def f(x):
        log.append("step")
        return x * 2

    f = case.fn(f)
    for _ in range(4):
        yield f(case.x), log


@program(each_call=True)
def append_of_a_shape(case: Case) -> Seen:
    shapes: list[Any] = []

    def f(x):
        shapes.append(tuple(x.shape))
        return x.sum()

    f = case.fn(f)
    for n in (1, 2, 1, 2):
        yield f(case.tensor([1.0] * n)), shapes


@program(each_call=True)
def append_of_a_tensor(case: Case) -> Seen:
    kept: list[torch.Tensor] = []

    def f(x):
        kept.append(x * 2)
        return x + 1

    f = case.fn(f)
    for i in range(4):
        yield f(case.x + i), kept


@program(each_call=True)
def pop_of_what_is_to_be_done(case: Case) -> Seen:
    todo = ["cos", "neg", "sin"]

    def f(x):
        if todo:
            x = getattr(torch, todo.pop())(x)
        return x * len(todo)

    f = case.fn(f)
    for _ in range(5):
        yield f(case.x), todo


@program(states=2)
def pop_of_a_key_that_is_there_once(case: Case) -> Seen:
    flags = {"reset": True, "other": 1}

    def f(x):
        if flags.pop("reset", False):
            return x * 0
        return x

    f = case.fn(f)
    yield f(case.x), flags
    yield f(case.x), flags
    flags["reset"] = True
    yield f(case.x), flags
    yield f(case.x), flags


@program(states=2)
def del_of_an_item(case: Case) -> Seen:
    todo = {"a": 2.0}

    def f(x):
        if "a" in todo:
            x = x * todo["a"]
            del todo["a"]
        return x

    f = case.fn(f)
    yield f(case.x), todo
    yield f(case.x), todo
    todo["a"] = 2.0
    yield f(case.x), todo


@program(states=2)
def add_to_a_set(case: Case) -> Seen:
    seen: set[Any] = set()

    def f(x):
        first = tuple(x.shape) not in seen
        seen.add(tuple(x.shape))
        return x * 10 if first else x

    f = case.fn(f)
    yield f(case.x), seen
    yield f(case.x), seen
    seen.clear()
    yield f(case.x), seen
    yield f(case.x), seen


@program(states=4)
def discard_and_update_of_a_set(case: Case) -> Seen:
    left = {"a", "b"}

    def f(x):
        n = len(left)
        left.discard("a")
        left.update({"c"})
        return x * n

    f = case.fn(f)
    for _ in range(3):
        yield f(case.x), left
    left.clear()
    yield f(case.x), left
    yield f(case.x), left


@program(states=2)
def setdefault_of_a_dict(case: Case) -> Seen:
    cfg: dict[str, float] = {}

    def f(x):
        return x * cfg.setdefault("gain", 3.0) + len(cfg)

    f = case.fn(f)
    yield f(case.x), cfg
    yield f(case.x), cfg
    cfg.clear()
    yield f(case.x), cfg


@program(states=3)
def update_of_a_dict(case: Case) -> Seen:
    stats: dict[str, Any] = {"name": "a"}

    def f(x):
        stats.update(shape=list(x.shape), dtype=str(x.dtype))
        return x + len(stats)

    f = case.fn(f)
    for _ in range(3):
        yield f(case.x), stats
    stats.clear()
    yield f(case.x), stats


@program(each_call=True)
def extend_and_insert(case: Case) -> Seen:
    log = [0]

    def f(x):
        log.extend([len(log), 7])
        log.insert(0, -1)
        return x * len(log)

    f = case.fn(f)
    for _ in range(3):
        yield f(case.x), log


@program(states=2)
def sort_of_a_list(case: Case) -> Seen:
    order = [3, 1, 2]

    def f(x):
        first = order[0]
        order.sort()
        return x * first

    f = case.fn(f)
    yield f(case.x), order
    yield f(case.x), order
    order[:] = [3, 1, 2]
    yield f(case.x), order
    yield f(case.x), order


@program(states=2)
def reverse_of_a_list(case: Case) -> Seen:
    order = [1, 2, 3]

    def f(x):
        x = x * order[0]
        order.reverse()
        return x

    f = case.fn(f)
    for _ in range(5):
        yield f(case.x), order


@program(states=2)
def clear_of_a_buffer(case: Case) -> Seen:
    buffer = [1.0, 2.0]

    def f(x):
        x = x + sum(buffer)
        buffer.clear()
        return x

    f = case.fn(f)
    yield f(case.x), buffer
    yield f(case.x), buffer
    buffer.extend([1.0, 2.0])
    yield f(case.x), buffer


@program(each_call=True)
def a_mutable_default(case: Case) -> Seen:
    def f(x, seen=[]):  # noqa: B006
        seen.append(len(seen))
        return x * len(seen)

    wrapped = case.fn(f)
    for _ in range(4):
        yield wrapped(case.x), f.__defaults__


@program(each_call=True)
def a_mutable_keyword_default(case: Case) -> Seen:
    def f(x, *, cache={}):  # noqa: B006
        cache["calls"] = cache.get("calls", 0) + 1
        return x * cache["calls"]

    wrapped = case.fn(f)
    for _ in range(4):
        yield wrapped(case.x), f.__kwdefaults__


@program(each_call=True, modes="eager jit rows")
def array_with_named_fields(case: Case) -> Seen:
    counts = np.zeros(2, dtype=[("calls", "i4"), ("weight", "f8")])

    def f(x):
        counts["calls"][0] += 1
        counts[1]["weight"] += 0.5
        return x * float(counts["weight"].sum())

    f = case.fn(f)
    for _ in range(3):
        yield f(case.x), counts["calls"], counts["weight"]
