"""L1: the order of arguments, and functions and objects as arguments."""

import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("reads", "jit rows")
Seen = Iterator[Any]


@program(states=2)
def order_of_keyword_arguments(case: Case) -> Seen:
    def f(x, **stages):
        for name, value in stages.items():
            x = x * value if name == "scale" else x + value
        return x

    f = case.fn(f)
    yield f(case.x, shift=1.0, scale=2.0)
    yield f(case.x, scale=2.0, shift=1.0)
    yield f(case.x, shift=1.0, scale=2.0)
    yield f(case.x, scale=2.0, shift=1.0)


@program(states=2)
def order_of_tensors_by_keyword(case: Case) -> Seen:
    f = case.fn(lambda **parts: torch.stack(list(parts.values())))
    a, b = case.x, -case.x
    yield f(b=b, a=a)
    yield f(a=a, b=b)
    yield f(b=b, a=a)


@program(states=2)
def order_of_a_dict_argument(case: Case) -> Seen:
    f = case.fn(lambda parts: torch.stack(list(parts.values())))
    a, b = case.x, -case.x
    yield f({"b": b, "a": a})
    yield f({"a": a, "b": b})
    yield f({"b": b, "a": a})


@program(states=2)
def recursive_functions_with_a_depth(case: Case) -> Seen:
    s = types.SimpleNamespace(depth=2)

    def even(x, n):
        return x if n == 0 else odd(x * 2, n - 1)

    def odd(x, n):
        return x if n == 0 else even(x + 1, n - 1)

    f = case.fn(lambda x: even(x, s.depth))
    for s.depth in (2, 3, 3, 2):
        yield f(case.x)


@program(states=3)
def list_of_lambdas_with_their_own_variables(case: Case) -> Seen:
    gains = [1.0, 2.0]
    stages = [lambda x, i=i: x * gains[i] for i in range(2)]

    f = case.fn(lambda x: stages[1](stages[0](x)))
    yield f(case.x)
    gains[1] = 4.0
    yield f(case.x)
    stages.pop(0)
    stages.append(lambda x: x + 1)
    yield f(case.x)


@program(states=3)
def argument_that_is_a_function(case: Case) -> Seen:
    s = types.SimpleNamespace(gain=2.0)
    f = case.fn(lambda x, act: act(x))

    def act(x):
        return x * s.gain

    for s.gain in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x, act)


@program(states=3)
def argument_that_is_a_module_or_object(case: Case) -> Seen:
    layer = nn.Identity()
    layer.gain = 2.0
    f = case.fn(lambda x, m: m(x) * m.gain)
    for layer.gain in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x, layer)


@program(states=3)
def one_tensor_as_two_arguments_or_two_over_its_memory(case: Case) -> Seen:
    def f(a, b):
        a.add_(1)
        return b * 2, a is b, len({a, b})

    f = case.fn(f)
    x, y = case.x, case.x
    for a, b in ((x, x), (x.view(3), x), (x, x), (x, y), (x.detach(), x)):
        yield f(a, b), x


@program(states=2)
def one_array_as_two_arguments(case: Case) -> Seen:
    f = case.fn(lambda x, a, b: x * 2 if a is b else x * float(a.sum() + b.sum()))
    one, other = np.ones(3), np.ones(3)
    for a, b in ((one, one), (one, other), (one, one), (other, one)):
        yield f(case.x, a, b)
