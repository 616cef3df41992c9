"""Arguments that each call makes anew: functions, methods, containers of Python's library."""

import collections
import functools
import types
from collections.abc import Iterator
from typing import Any

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("arguments", "jit rows")
Seen = Iterator[Any]


@program(states=3)
def deque_that_is_an_argument(case: Case) -> Seen:
    def f(x, waiting):
        waiting.append(x * 2)
        waiting.rotate(1)
        return x * len(waiting), waiting

    f = case.fn(f)
    for i in range(3):
        waiting = collections.deque([case.x, case.x + i], maxlen=2)
        value, same = f(case.x, waiting)
        yield value, same is waiting, waiting, waiting.maxlen
    nested = {"waiting": [collections.deque([1])]}
    f = case.fn(lambda batch: batch["waiting"][0].appendleft(2))
    for _ in range(3):
        f(nested)
        yield nested


@program(states=2)
def defaultdict_whose_order_counts(case: Case) -> Seen:
    def f(x, named):
        for name, value in named.items():
            x = x * value + len(name)
        named["last"] = x
        return x, named

    f = case.fn(f)
    for i in range(3):
        named = collections.defaultdict(int, bb=case.x, a=case.x + i)
        value, same = f(case.x, named)
        yield value, same is named, named
    yield f(case.x, collections.defaultdict(int, a=case.x, bb=case.x))


@program(states=6)
def one_container_of_any_kind_as_two_arguments(case: Case) -> Seen:
    def f(a, b):
        a["inner"].update(new=1)
        return a["x"] * len(b["inner"])

    f = case.fn(f)
    for kind in (dict, collections.OrderedDict, functools.partial(collections.defaultdict, int)):
        one, other = kind(), kind()
        yield f({"inner": one, "x": case.x}, {"inner": one}), one
        yield f({"inner": other, "x": case.x}, {"inner": kind()}), other


@program(states=2)
def counter_made_anew(case: Case) -> Seen:
    def f(x, counter):
        counter.update(["a", "b"])
        return x * counter["a"]

    f = case.fn(f)
    for _ in range(4):
        counter = collections.Counter(a=1)
        yield f(case.x, counter), counter


class Scaled:
    def __init__(self, by: float) -> None:
        self.by = by

    def loss(self, x):
        return x * self.by


@program(states=3)
def method_that_is_an_argument(case: Case) -> Seen:
    a, b = Scaled(2.0), Scaled(3.0)
    f = case.fn(lambda x, loss=None: (loss(x), loss.__self__.by))
    for one in (a, a, b, b, a):
        yield f(case.x, loss=one.loss)
    a.by = 9.0
    yield f(case.x, loss=a.loss)


@program(states=5)  # two numbers, and any number
def closure_that_is_an_argument(case: Case) -> Seen:
    factors = [2.0]

    def scaled(by):
        return lambda x, plus=by: x * by * factors[0] + plus

    f = case.fn(lambda x, functions: functions[0](x))
    for by in (1.0, 1.0, 3.0, 3.0, 1.0):
        yield f(case.x, [scaled(by)])
    factors[0] = 5.0
    yield f(case.x, [scaled(1.0)])
    counted = scaled(1.0)
    counted.note = 1  # type: ignore[attr-defined]
    yield f(case.x, [counted])


@program(states=3)
def variable_of_a_closure_that_is_an_argument(case: Case) -> Seen:
    def made():
        by = 2.0

        def use(value):
            nonlocal by
            by = value

        return (lambda x: x * by), use

    f = case.fn(lambda x, function: function(x))
    (first, use), (second, use_second) = made(), made()
    yield f(case.x, first)
    use(3.0)
    yield f(case.x, first), f(case.x, second)
    use_second(3.0)
    yield f(case.x, second), f(case.x, first)


@program(states=2)
def function_that_is_kept_and_returned(case: Case) -> Seen:
    kept = types.SimpleNamespace(function=None)

    def f(x, function):
        kept.function = function
        return function(x), function

    f = case.fn(f)
    for _ in range(3):
        function = lambda x: x * 2
        value, same = f(case.x, function)
        yield value, same is function, kept.function is function


@program(states=4)  # two numbers, and any number
def partial_that_is_an_argument(case: Case) -> Seen:
    def scaled(x, by, plus=0.0):
        return x * by + plus

    f = case.fn(lambda x, function: function(x))
    for options in ({"by": 2.0}, {"by": 2.0}, {"by": 3.0}, {"by": 2.0, "plus": 1.0}, {"by": 2.0}):
        yield f(case.x, functools.partial(scaled, **options))
