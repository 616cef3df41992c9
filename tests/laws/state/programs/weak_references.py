"""Weak references to tensors that a function creates: each call's refer to its own tensors."""

import types
import weakref
from collections.abc import Iterator
from typing import Any

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("weak references", "eager jit rows")

Seen = Iterator[Any]


@program
def weak_reference_returned_with_its_tensor(case: Case) -> Seen:
    def f(x):
        y = x * 2
        return {"tensor": y, "weak": weakref.ref(y), "part": y[1:]}

    f = case.fn(f)
    for i in range(4):
        made = f(case.x * i)
        yield made["tensor"], made["weak"]() is made["tensor"]
        made["part"].add_(1)
        yield made["tensor"]


@program(each_call=True)
def weak_reference_kept_to_what_is_returned(case: Case) -> Seen:
    last = types.SimpleNamespace(result=None, part=None)
    weight = case.tensor([1.0, 2.0, 3.0], requires_grad=True)

    def f(x):
        y = (x * weight).sum()
        part = x[1:]
        last.result, last.part = weakref.ref(y), weakref.ref(part)
        return y, part

    f = case.fn(f)
    for i in range(4):
        y, part = f(case.x * i)
        yield last.result() is y, last.part() is part
        y.backward()
        yield weight.grad


@program(each_call=True)
def weak_reference_to_what_ends_with_the_call(case: Case) -> Seen:
    last = types.SimpleNamespace(result=None)

    def f(x):
        y = x * 2
        last.result = weakref.ref(y)
        return y + 1

    f = case.fn(f)
    for i in range(3):
        yield f(case.x * i), last.result()


@program(each_call=True)
def weak_values_of_a_cache(case: Case) -> Seen:
    cache: Any = weakref.WeakValueDictionary()

    def f(x, key):
        if key in cache:
            return cache[key] + x
        y = x * 3
        cache[key] = y
        return y

    f, held = case.fn(f), []
    for key in ("a", "a", "b", "a", "b"):
        held.append(f(case.x, key))
        yield held[-1], sorted(cache), [cache[name] for name in sorted(cache)]


@program(each_call=True)
def weak_set_of_results(case: Case) -> Seen:
    seen: Any = weakref.WeakSet()

    def f(x):
        y = x * 2
        seen.add(y)
        return y

    f, held = case.fn(f), []
    for i in range(3):
        held.append(f(case.x * i))
        yield len(seen)


@program(states=3)
def proxy_whose_target_has_gone(case: Case) -> Seen:
    class Settings:
        def __init__(self, scale):
            self.scale = scale

    kept = [Settings(2.0)]
    state = types.SimpleNamespace(settings=weakref.proxy(kept[0]))
    f = case.fn(lambda x: x * state.settings.scale)
    for scale in (2.0, 3.0):
        kept[0].scale = scale
        yield f(case.x)
    kept[0] = Settings(4.0)
    state.settings = weakref.proxy(kept[0])
    yield f(case.x)
