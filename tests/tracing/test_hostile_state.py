"""Programs that change Python state, or read what differs from call to call: followed or refused.

A graph that is made must compute what the program computes, three times over with changed inputs,
and leave what it leaves; otherwise the trace must have refused, with the line. Either way a trace
leaves Python as it was.
"""

import collections
import contextlib
import contextvars
import dataclasses
import enum
import functools
import itertools
import logging
import os
import random
import tempfile
import time
import types
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import calque
from calque import TraceError

X = torch.arange(1.0, 4.0)


class Mode(enum.Enum):
    FIRST = 1
    LATER = 2


class Counter:
    total = 0

    def __init__(self) -> None:
        self.n, self.log, self.mode = 0, ["a"], Mode.FIRST
        self.seen: set[str] = set()
        self.done: dict[str, Any] = {"reset": True}


class Slotted:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


@dataclasses.dataclass
class Config:
    steps: int = 0
    tags: list[str] = dataclasses.field(default_factory=list)


class World:
    """Everything that the programs reach; made anew for each."""

    def __init__(self) -> None:
        self.counter, self.slotted, self.config = Counter(), Slotted(), Config()
        self.todo, self.queue = [1.0, 2.0, 3.0], collections.deque([1.0, 2.0])
        self.table: dict[str, Any] = {"scale": 2.0, "reset": True, "inner": {"n": 0}}
        self.tally = collections.Counter()
        self.names = {"a"}
        self.space = types.SimpleNamespace(n=0)
        self.array, self.bytes = np.zeros(2), bytearray(b"ab")
        self.numbers = itertools.count(1)
        self.cycle = itertools.cycle([1.0, 2.0])
        self.rest = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        self.generator = (float(i) for i in range(10))
        self.random, self.numpy = random.Random(0), np.random.default_rng(0)
        self.legacy = np.random.RandomState(0)
        self.variable = contextvars.ContextVar("variable", default=1.0)
        self.weakly = functools.partial(lambda *a: sum(a), 1.0)
        self.layer = nn.Linear(3, 3)


W = World()
KEPT = 0


def count_globally(x):
    global KEPT
    KEPT += 1
    return x * KEPT


def make_nonlocal():
    n = 0

    def count(x):
        nonlocal n
        n += 1
        return x * n

    return count


def with_default(x, log=[]):  # noqa: B006
    log.append(1)
    return x * len(log)


def attribute_of_itself(x):
    attribute_of_itself.calls = getattr(attribute_of_itself, "calls", 0) + 1
    return x * attribute_of_itself.calls


@functools.lru_cache
def remembered(n):
    W.counter.n += 1
    return float(n)


def advance(x):
    if W.counter.mode is Mode.FIRST:
        W.counter.mode = Mode.LATER
        return x * 100
    return x


def grows(x):
    os.environ["CALQUE_N"] = os.environ.get("CALQUE_N", "") + "1"
    return x * len(os.environ["CALQUE_N"])


def pops(x):
    return x * 5 if W.table.pop("reset", None) else x


def deletes(x):
    if hasattr(W.space, "n"):
        del W.space.n
        return x * 3
    return x


def suppressed(x):
    with contextlib.suppress(Exception):
        return x * int(x.sum())
    return x * 0


def finally_returns(x):
    try:
        return x * float(x.sum())
    finally:
        return x * 0  # noqa: B012, SIM107


def caught_twice(x):
    try:
        try:
            v = int(x.sum())
        except TraceError as error:
            raise ValueError("no") from error
    except Exception:
        v = 0
    return x * v


def caught_bare(x):
    try:
        v = float(x.sum())
    except BaseException:
        v = 7.0
    return x * v


def exits(x):
    class Swallow:
        def __enter__(self):
            return self

        def __exit__(self, *exception):
            return True

    with Swallow():
        return x * float(x.sum())
    return x


def reads_file(x):
    with open(os.path.join(tempfile.gettempdir(), "calque-nothing-here"), "a+") as file:
        return x + len(file.read())


CHANGES: dict[str, Callable[[], Callable[[Any], Any]]] = {
    "append": lambda: lambda x: (W.counter.log.append("s"), x * len(W.counter.log))[1],
    "append only": lambda: lambda x: (W.counter.log.append("s"), x * 2)[1],
    "append a value": lambda: lambda x: (W.counter.log.append(x * 2), x)[1],
    "extend": lambda: lambda x: (W.counter.log.extend("ab"), x)[1],
    "insert": lambda: lambda x: (W.todo.insert(0, 1.0), x * W.todo[1])[1],
    "pop": lambda: lambda x: x * W.todo.pop(),
    "popleft": lambda: lambda x: x * W.queue.popleft(),
    "rotate": lambda: lambda x: (W.queue.rotate(1), x * W.queue[0])[1],
    "reverse": lambda: lambda x: (W.todo.reverse(), x * W.todo[0])[1],
    "del item": lambda: lambda x: (W.todo.__delitem__(0), x * W.todo[0])[1],
    "item": lambda: lambda x: (W.todo.__setitem__(0, W.todo[0] + 1), x * W.todo[0])[1],
    "attribute": lambda: lambda x: (setattr(W.counter, "n", W.counter.n + 1), x * W.counter.n)[1],
    "new attribute": lambda: lambda x: (setattr(W.space, "m", getattr(W.space, "m", 0) + 1), x)[1],
    "slot": lambda: lambda x: (setattr(W.slotted, "n", W.slotted.n + 1), x * W.slotted.n)[1],
    "class": lambda: lambda x: (setattr(Counter, "total", Counter.total + 1), x * Counter.total)[1],
    "a value in a class": lambda: lambda x: (setattr(Counter, "total", x * 2), x)[1],
    "data class": lambda: lambda x: (setattr(W.config, "steps", W.config.steps + 1), x)[1],
    "dict": lambda: lambda x: (W.table.update(scale=W.table["scale"] + 1), x * W.table["scale"])[1],
    "nested dict": lambda: lambda x: (W.table["inner"].update(n=W.table["inner"]["n"] + 1), x)[1],
    "setdefault": lambda: lambda x: x * W.table.setdefault(f"k{len(W.table)}", len(W.table)),
    "tally": lambda: lambda x: (W.tally.update("a"), x * W.tally["a"])[1],
    "set add": lambda: lambda x: (W.names.add(str(len(W.names))), x * len(W.names))[1],
    "pops": lambda: pops,
    "deletes": lambda: deletes,
    "array": lambda: lambda x: (W.array.__setitem__(0, W.array[0] + 1), x * float(W.array[0]))[1],
    "bytes": lambda: lambda x: (W.bytes.append(1), x * len(W.bytes))[1],
    "enum advances": lambda: advance,
    "global": lambda: count_globally,
    "nonlocal": make_nonlocal,
    "mutable default": lambda: with_default,
    "function attribute": lambda: attribute_of_itself,
    "lru_cache": lambda: lambda x: x * remembered(len(W.todo)),
    "next": lambda: lambda x: x * next(W.rest),
    "for with break": lambda: lambda x: x * next(v for v in W.rest if v),
    "count": lambda: lambda x: x * next(W.numbers),
    "cycle": lambda: lambda x: x * next(W.cycle),
    "generator": lambda: lambda x: x + next(W.generator),
    "context variable": lambda: lambda x: x * (W.variable.set(W.variable.get() + 1) and 1.0),
    "environment": lambda: grows,
    "random": lambda: lambda x: x * random.random(),
    "random method": lambda: lambda x: x * random.betavariate(1, 1),
    "random object": lambda: lambda x: x * W.random.random(),
    "random shuffle": lambda: lambda x: (W.random.shuffle(W.todo), x)[1],
    "numpy random": lambda: lambda x: x * float(np.random.standard_cauchy()),
    "numpy generator": lambda: lambda x: x * float(W.numpy.random()),
    "numpy legacy": lambda: lambda x: x * float(W.legacy.rand()),
    "secrets": lambda: lambda x: x * random.SystemRandom().random(),
    "urandom": lambda: lambda x: x * os.urandom(1)[0],
    "uuid": lambda: lambda x: x * (uuid.uuid4().int % 7),
    "time": lambda: lambda x: x * (time.time() % 1),
    "perf_counter": lambda: lambda x: x * time.perf_counter(),
    "clock bound": lambda: lambda x, now=time.monotonic: x * now(),
    "file": lambda: reads_file,
    "default dtype": lambda: lambda x: (torch.set_default_dtype(torch.float64), x * 2)[1],
    "suppress": lambda: suppressed,
    "finally: return": lambda: finally_returns,
    "caught twice": lambda: caught_twice,
    "caught bare": lambda: caught_bare,
    "swallowing block": lambda: exits,
}


def state() -> Any:
    """What a trace may not change, as far as it can be read without moving it on."""
    simple = [vars(W.counter), W.slotted.n, W.config, W.todo, list(W.queue), W.table, dict(W.tally)]
    moving = [W.numbers, W.random.getstate(), str(W.legacy.get_state())]
    shared = [KEPT, Counter.total, with_default.__defaults__, vars(attribute_of_itself)]
    rest = [sorted(W.names), vars(W.space), W.array.tolist(), bytes(W.bytes), W.variable.get()]
    modes = [torch.get_default_dtype(), torch.is_grad_enabled(), os.environ.get("CALQUE_N")]
    return repr([simple, moving, shared, rest, modes])


@pytest.fixture(autouse=True)
def anew():
    global W, KEPT
    before = torch.get_default_dtype()
    W, KEPT, Counter.total = World(), 0, 0
    with_default.__defaults__[0].clear()
    vars(attribute_of_itself).clear()
    remembered.cache_clear()
    os.environ.pop("CALQUE_N", None)
    yield
    torch.set_default_dtype(before)
    os.environ.pop("CALQUE_N", None)


@pytest.mark.sampled(30)
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_refused_with_its_line_and_taken_back(name: str) -> None:
    program = CHANGES[name]()
    moves_on = {"next", "for with break", "count", "cycle", "generator"}
    before = state()
    with pytest.raises(TraceError, match=r"test_hostile_state\.py(:\d+)? in "):
        calque.trace(program, X)
    if name not in moves_on:
        assert state() == before


def test_a_line_that_is_logged_is_no_state(caplog):
    """A record has a time, and a warning reads the line it is about."""

    def program(x):
        logging.getLogger("somebodys").warning("seen %d", 1)
        return x + 1

    graph = calque.trace(program, torch.ones(2))
    assert graph(torch.ones(2)).tolist() == [2, 2]
    assert "seen 1" in caplog.text


def test_a_class_that_does_not_say_where_it_is_from():
    class Odd:
        scale = 2.0

    Odd.__module__ = property(lambda self: "odd")  # type: ignore[assignment]
    odd = Odd()
    graph = calque.trace(lambda x: x * odd.scale, torch.ones(2))
    assert graph(torch.ones(2)).tolist() == [2, 2]
    jitted = calque.jit(lambda x: x * odd.scale)
    assert jitted(torch.ones(2, device="jax")).tolist() == [2, 2]
