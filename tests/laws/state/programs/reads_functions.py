"""L1: what functions carry: defaults, closures, code, attributes, wrappers, caches."""

import contextlib
import functools
import operator
import types
from collections.abc import Iterator
from typing import Any

import torch

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("reads", "jit rows")
Seen = Iterator[Any]


@program(states=3)
def default_of_a_helper(case: Case) -> Seen:
    def helper(x, gain=2.0):
        return x * gain

    f = case.fn(lambda x: helper(x))
    for gain in (2.0, 3.0, 5.0, 2.0):
        helper.__defaults__ = (gain,)
        yield f(case.x)


@program(states=3)
def default_of_the_function_itself(case: Case) -> Seen:
    def f(x, gain=2.0):
        return x * gain

    wrapped = case.fn(f)
    for gain in (2.0, 3.0, 5.0, 2.0):
        f.__defaults__ = (gain,)
        yield wrapped(case.x)


@program(states=3)
def keyword_default_of_a_helper(case: Case) -> Seen:
    def helper(x, *, gain=2.0):
        return x * gain

    f = case.fn(lambda x: helper(x))
    for gain in (2.0, 3.0, 5.0, 2.0):
        helper.__kwdefaults__["gain"] = gain
        yield f(case.x)


@program(states=2)
def code_of_a_helper(case: Case) -> Seen:
    def helper(x):
        return x * 2

    def other(x):
        return x + 10

    f = case.fn(lambda x: helper(x))
    for code in (helper.__code__, other.__code__, other.__code__, helper.__code__):
        helper.__code__ = code
        yield f(case.x)


@program(states=2)
def code_of_the_function_itself(case: Case) -> Seen:
    def f(x):
        return x * 2

    def other(x):
        return x + 10

    wrapped = case.fn(f)
    for code in (f.__code__, other.__code__, other.__code__, f.__code__):
        f.__code__ = code
        yield wrapped(case.x)


@program(states=3)
def attribute_of_a_function(case: Case) -> Seen:
    def helper(x):
        return x * helper.gain

    f = case.fn(lambda x: helper(x))
    for helper.gain in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def variable_of_the_enclosing_function(case: Case) -> Seen:
    gain = 2.0
    f = case.fn(lambda x: x * gain)
    for gain in (2.0, 3.0, 5.0, 2.0):  # noqa: B007
        yield f(case.x)


@program(states=3)
def variable_set_through_a_setter(case: Case) -> Seen:
    def make():
        gain = 2.0

        def apply(x):
            return x * gain

        def set_gain(value):
            nonlocal gain
            gain = value

        return apply, set_gain

    apply, set_gain = make()
    f = case.fn(lambda x: apply(x))
    for gain in (2.0, 3.0, 5.0, 2.0):
        set_gain(gain)
        yield f(case.x)


@program(states=2)
def function_replaced_in_a_closure(case: Case) -> Seen:
    act = torch.relu
    f = case.fn(lambda x: act(x))
    for act in (torch.relu, torch.neg, torch.neg, torch.relu):  # noqa: B007
        yield f(-case.x)


@program(states=3)
def closure_within_a_closure(case: Case) -> Seen:
    s = [2.0]

    def outer():
        def inner():
            return lambda x: x * s[0]

        return inner

    f = case.fn(lambda x: outer()()(x))
    for s[0] in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def partial_with_changed_keywords(case: Case) -> Seen:
    scaled = functools.partial(torch.add, alpha=2.0)
    f = case.fn(lambda x: scaled(x, x))
    for alpha in (2.0, 3.0, 5.0, 2.0):
        scaled.keywords["alpha"] = alpha
        yield f(case.x)


@program(states=3)
def partial_replaced_in_a_list(case: Case) -> Seen:
    stages = [functools.partial(torch.mul, other=2.0)]
    f = case.fn(lambda x: stages[0](x))
    for other in (2.0, 3.0, 5.0, 2.0):
        stages[0] = functools.partial(torch.mul, other=other)
        yield f(case.x)


@program(states=3)
def partial_that_is_jitted(case: Case) -> Seen:
    def scale(x, gain, s):
        return x * gain * s.factor

    s = types.SimpleNamespace(factor=1.0)
    f = case.fn(functools.partial(scale, gain=2.0, s=s))
    for s.factor in (1.0, 3.0, 5.0, 1.0):
        yield f(case.x)


@program(states=4)
def cached_function_whose_cache_is_cleared(case: Case) -> Seen:
    source = {"gain": 2.0}

    @functools.lru_cache
    def gain():
        return source["gain"]

    f = case.fn(lambda x: x * gain())
    yield f(case.x), gain.cache_info().currsize
    source["gain"] = 5.0
    yield f(case.x), gain.cache_info().currsize  # the cache size is 2
    gain.cache_clear()
    yield f(case.x), gain.cache_info().currsize
    yield f(case.x), gain.cache_info().currsize


@program(states=3)
def single_dispatch_with_a_new_case(case: Case) -> Seen:
    @functools.singledispatch
    def encode(value, x):
        return x

    f = case.fn(lambda x: encode(1, x))
    yield f(case.x)
    encode.register(int, lambda value, x: x * 2)
    yield f(case.x)
    encode.register(int, lambda value, x: x * 3)
    yield f(case.x)


@program(states=3)
def wrapped_function_with_state_in_its_decorator(case: Case) -> Seen:
    def scaled(s):
        def decorate(fn):
            @functools.wraps(fn)
            def run(x):
                return fn(x) * s.gain

            return run

        return decorate

    s = types.SimpleNamespace(gain=2.0)

    @scaled(s)
    def helper(x):
        return x + 1

    f = case.fn(lambda x: helper(x))
    for s.gain in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=2)
def wrapped_attribute_replaced(case: Case) -> Seen:
    def double(x):
        return x * 2

    @functools.wraps(double)
    def run(x):
        return run.__wrapped__(x)

    f = case.fn(lambda x: run(x))
    for run.__wrapped__ in (double, torch.neg, torch.neg, double):
        yield f(case.x)


@program(states=3)
def bound_method_of_an_object(case: Case) -> Seen:
    class Scaler:
        gain = 2.0

        def scale(self, x):
            return x * self.gain

    scaler = Scaler()
    f = case.fn(scaler.scale)
    for scaler.gain in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def class_method_and_static_method(case: Case) -> Seen:
    class Scaler:
        gain = 2.0

        @classmethod
        def scale(cls, x):
            return cls.shift(x) * cls.gain

        @staticmethod
        def shift(x, by=1.0):
            return x + by

    f = case.fn(Scaler.scale)
    yield f(case.x)
    Scaler.gain = 3.0
    yield f(case.x)
    Scaler.__dict__["shift"].__func__.__defaults__ = (5.0,)
    yield f(case.x)


@program(states=3)
def callable_object_that_is_jitted(case: Case) -> Seen:
    class Step:
        gain = 2.0

        def __call__(self, x):
            return x * self.gain

    step = Step()
    f = case.fn(step)
    for step.gain in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def item_getter_and_attr_getter(case: Case) -> Seen:
    cfg = {"model": types.SimpleNamespace(gain=2.0)}
    get, gain = operator.itemgetter("model"), operator.attrgetter("gain")
    f = case.fn(lambda x: x * gain(get(cfg)))
    for cfg["model"].gain in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def map_filter_sorted_with_a_key_function(case: Case) -> Seen:
    weights = {"a": 3.0, "b": 1.0, "c": 2.0}
    s = types.SimpleNamespace(least=0.0)

    def f(x):
        names = sorted(filter(lambda n: weights[n] > s.least, weights), key=weights.__getitem__)
        return x * weights[names[0]] + len(names)

    f = case.fn(f)
    yield f(case.x)
    s.least = 1.5
    yield f(case.x)
    weights["c"] = 9.0
    yield f(case.x)


@program(states=2)
def context_manager_function(case: Case) -> Seen:
    s = types.SimpleNamespace(gain=1.0, inside=2.0)

    @contextlib.contextmanager
    def scaled():
        s.gain = s.inside
        try:
            yield
        finally:
            s.gain = 1.0

    def f(x):
        with scaled():
            return x * s.gain

    f = case.fn(f)
    for s.inside in (2.0, 3.0, 3.0, 2.0):
        yield f(case.x), s


@program(states=2)
def name_and_text_of_a_function(case: Case) -> Seen:
    def inner():
        """Short."""

    f = case.fn(lambda x: x * len(inner.__name__) + len(inner.__doc__ or ""))
    yield f(case.x)
    yield f(case.x)
    inner.__name__, inner.__doc__ = "another", None
    yield f(case.x)
    yield f(case.x)
