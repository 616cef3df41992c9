"""Tensors of the state that others replace between calls, as a loop does with a hidden state."""

import collections
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("exchanged", "jit rows")
Seen = Iterator[Any]


@program
def hidden_state_that_the_loop_detaches(case: Case) -> Seen:
    layer = case.linear(3, 3)
    s = types.SimpleNamespace(hidden=case.rows)
    sgd = torch.optim.SGD(layer.parameters(), lr=0.1)

    def f(x):
        hidden = torch.tanh(layer(x) + s.hidden)
        hidden.sum().backward()
        sgd.step()
        sgd.zero_grad()
        return hidden

    f = case.fn(f)
    for i in range(5):
        s.hidden = f(case.rows + i).detach()
        yield s.hidden, layer


@program
def tensor_that_is_exchanged_and_returned(case: Case) -> Seen:
    s, kept = types.SimpleNamespace(), []

    def f(x):
        s.weight.add_(x)
        return s.weight * 2, s.weight

    f = case.fn(f)
    for i in range(5):
        s.weight = case.x * i
        kept.append(s.weight)
        value, same = f(case.x)
        yield value, same is s.weight, kept


@program(states=2)
def buffer_of_a_module_and_item_of_a_list(case: Case) -> Seen:
    norm, scales = case.on(nn.BatchNorm1d(3)), [case.x]
    f = case.fn(lambda x: norm(x) * scales[0])
    for i in range(5):
        yield f(case.rows + i), norm
        norm.running_mean = norm.running_mean * 0.5
        scales[0] = case.x * i


@program(states=2)
def two_buffers_that_change_places(case: Case) -> Seen:
    first, second = case.x, case.x * 5
    s = types.SimpleNamespace(now=first, after=second)

    def f(x):
        s.after.copy_(s.now * x)
        return s.after.sum()

    f = case.fn(f)
    for _ in range(5):
        yield f(case.x), first, second
        s.now, s.after = s.after, s.now


@program(states=4)
def tensor_exchanged_for_one_that_is_held_elsewhere(case: Case) -> Seen:
    s = types.SimpleNamespace(a=case.x, b=case.x + 1)

    def f(x):
        s.a.add_(1)
        return s.b * x

    f = case.fn(f)
    for i in range(3):
        s.a = case.x * i
        yield f(case.x), s.a, s.b
    for other in (s.b, s.b[:3].view(3), case.x):
        s.a = other
        yield f(case.x), s.a, s.b


@program(states=4)
def tensor_exchanged_where_the_program_asks_which_it_is(case: Case) -> Seen:
    first, second = case.x, case.x * 2
    s, known = types.SimpleNamespace(), {first: 2.0, second: 3.0}
    by_is = case.fn(lambda x: x * (2 if s.weight is first else 3))
    by_hash = case.fn(lambda x: x * known.get(s.weight, 9.0))
    for s.weight in (second, case.x, case.x, first, second):
        yield by_is(case.x), by_hash(case.x)


@program(states=3)
def tensor_exchanged_for_one_with_a_gradient(case: Case) -> Seen:
    s = types.SimpleNamespace()
    f = case.fn(lambda x: (x * s.weight).sum())
    for i in range(3):
        s.weight = case.x * i
        yield f(case.x)
    s.weight = case.x.requires_grad_()
    f(case.x).backward()
    yield s.weight
    s.weight = case.x * 7
    yield f(case.x)


@program(each_call=True)
def frames_in_a_list_and_in_a_deque_that_turns(case: Case) -> Seen:
    frames = [case.x * i for i in range(4)]
    turning = collections.deque(frames)

    def f(x):
        old = frames.pop(0)
        frames.append(x)
        turning.rotate(1)
        return old, turning[0]

    f = case.fn(f)
    for i in range(7):
        yield f(case.x + i), frames, turning


@program(each_call=True)
def tensors_exchanged_between_two_dicts(case: Case) -> Seen:
    a = {"x": case.x, "y": case.x * 2}
    b = dict(a)

    def f(x):
        a["x"], b["y"] = b["y"], a["x"]
        a["n"] = x
        return a["y"], b["x"], a["x"]

    f = case.fn(f)
    for i in range(10):
        yield f(case.x + i), a, b
        if i == 3:
            b["x"] = a["n"]
        if i == 5:
            a["y"] = b["x"]
        if i == 7:
            a.update(b)


@program(each_call=True)
def tensor_in_a_variable_and_in_a_pair_with_a_parameter(case: Case) -> Seen:
    p, b = nn.Parameter(case.x), types.SimpleNamespace(a=case.x)
    b.pair = (b.a, p)

    def f(x):
        old = b.a
        b.a = b.pair[0] + x
        b.pair = (old, p)
        return old, b.pair[0]

    f = case.fn(f)
    for i in range(7):
        yield f(case.x + i), b
        if i == 2:
            b.a = b.pair[0]
        if i == 4:
            b.a = case.x * 2


@program
def parameter_returned_that_takes_turns(case: Case) -> Seen:
    s = types.SimpleNamespace(a=nn.Parameter(case.x), b=nn.Parameter(case.x * 2))

    def f(x):
        s.a, s.b = s.b, s.a
        return s.a, [s.b], x * s.a

    f = case.fn(f)
    for i in range(6):
        yield f(case.x), s
        if i == 3:
            s.b = nn.Parameter(case.x * 3)


@program(each_call=True)
def weights_swapped_at_every_other_call(case: Case) -> Seen:
    a, b, steps = case.linear(), case.linear(), [0]

    def f(x):
        steps[0] += 1
        if steps[0] % 2 == 0:
            a.weight, b.weight = b.weight, a.weight
        return a(x) - b(x), a.weight

    f = case.fn(f)
    for i in range(7):
        yield f(case.rows + i), a, b
        if i == 3:
            with torch.no_grad():
                a.weight.add_(1)


@program
def list_of_parameters_that_turns(case: Case) -> Seen:
    ps = nn.ParameterList(nn.Parameter(case.x * i) for i in range(1, 4))

    def f(x):
        first = ps[0]
        ps[0], ps[1], ps[2] = ps[1], ps[2], first
        return first, (ps[0] * x).sum()

    f = case.fn(f)
    for _ in range(6):
        yield f(case.x), ps
