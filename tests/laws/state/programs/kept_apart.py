"""What is easily taken for the same: orders of sets, entries of caches, objects that copy oddly."""

import functools
import gc
import types
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("kept", "jit rows")
Seen = Iterator[Any]


@program(states=2)
def order_in_which_a_set_was_filled(case: Case) -> Seen:
    numbers = {0, 8}

    def f(x):
        for number in numbers:
            x = x * 2 + number
        return x

    f = case.fn(f)
    for order in ((0, 8), (8, 0), (8, 0), (0, 8)):
        numbers.clear()
        for number in order:
            numbers.add(number)
        yield f(case.x), list(numbers)


@program(states=2)
def order_of_a_frozenset(case: Case) -> Seen:
    s = types.SimpleNamespace()

    def f(x):
        for number in s.numbers:
            x = x * 2 + number
        return x

    f = case.fn(f)
    for order in ((0, 8), (0, 8), (8, 0), (0, 8)):
        s.numbers = frozenset(order)
        yield f(case.x)


@program(states=3)
def results_in_a_cache_are_changed(case: Case) -> Seen:
    tables = [functools.lru_cache(size)(lambda n: {"v": [float(n)]}) for size in (None, 2)]
    for table in tables:
        table(2)
    f = case.fn(lambda x: x * tables[0](2)["v"][0] + tables[1](2)["v"][0])
    yield f(case.x)
    for table in tables:
        yield f(case.x)
        table(2)["v"].insert(0, 9.0)
        yield f(case.x)


@program(each_call=True)
def small_cache_that_forgets(case: Case) -> Seen:
    computed: list[int] = []
    s = types.SimpleNamespace()

    @functools.lru_cache(maxsize=1)
    def double(n):
        computed.append(n)
        return n * 2.0

    f = case.fn(lambda x: x * double(s.n))
    for s.n in (1, 1, 2, 1, 1):
        yield f(case.x), computed


class Listener:
    def __init__(self, by: float) -> None:
        self.by = by

    def heard(self, x):
        return x * self.by


@program(states=4)
def methods_that_are_held_weakly(case: Case) -> Seen:
    first, second = Listener(2.0), Listener(3.0)
    listening = [weakref.WeakMethod(first.heard)]

    def f(x):
        for reference in listening:
            method = reference()
            x = x if method is None else method(x)
        return x

    f = case.fn(f)
    yield f(case.x)
    first.by = 4.0
    yield f(case.x)
    listening.append(weakref.WeakMethod(second.heard))
    yield f(case.x)
    del first
    gc.collect()
    yield f(case.x)
    yield f(case.x)


class Pooled:
    pool: ClassVar[dict[int, Any]] = {}

    def __new__(cls, number):
        if number not in cls.pool:
            cls.pool[number] = super().__new__(cls)
            cls.pool[number].number = number
        return cls.pool[number]


@program(states=2)
def objects_of_a_pool(case: Case) -> Seen:
    case.patch(Pooled, "pool", {})
    f = case.fn(lambda x: x * Pooled(2).number + len(Pooled.pool))
    for _ in range(3):
        yield f(case.x), Pooled.pool
    Pooled.pool.clear()
    yield f(case.x), Pooled.pool


class Peculiar(dict[str, Any]):
    """Copies of it, made as Python does, are others."""

    made: ClassVar[list[str]] = []
    __slots__ = ("extra", "note")

    def __new__(cls, note):
        cls.made.append("new")
        return super().__new__(cls)

    def __init__(self, note):
        self.note = note
        self.made.append("init")

    def __setitem__(self, key, value):
        self.made.append("set")
        super().__setitem__(key, value)

    def __reduce__(self):
        self.made.append("reduced")
        return Peculiar, ("another",)


@program(each_call=True)
def object_that_copies_oddly_is_kept(case: Case) -> Seen:
    s = types.SimpleNamespace(last=None)

    def f(x):
        s.last = Peculiar("first")
        s.last["value"] = x * 2
        return x

    f = case.fn(f)
    for i in range(4):
        Peculiar.made.clear()
        f(case.x + i)
        yield s.last, Peculiar.made


class Wanting:
    made: ClassVar[list[Any]] = []

    def __new__(cls, value):
        made = super().__new__(cls)
        made.value = value
        return made

    def __copy__(self):
        self.made.append("copied")
        return self


@program
def object_that_copies_oddly_is_returned(case: Case) -> Seen:
    f = case.fn(lambda x: Wanting(x * 2))
    kept = []
    for i in range(3):
        kept.append(f(case.x + i))
        yield kept, Wanting.made
