"""L1: tensors of the CPU in Python state; errors; nested functions; arguments."""

import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("host", "eager jit rows")
Seen = Iterator[Any]


@program(states=3)
def scalar_of_the_cpu_filled(case: Case) -> Seen:
    gain = torch.tensor(2.0)
    f = case.fn(lambda x: x * gain)
    for value in (2.0, 2.0, 3.0, 5.0, 2.0):
        gain.fill_(value)
        yield f(case.x)


@program(states=3)
def item_of_a_tensor_of_the_cpu(case: Case) -> Seen:
    gain = torch.tensor([2.0, 1.0])
    f = case.fn(lambda x: x * gain[0].item() + float(gain[1]))
    for value in (2.0, 2.0, 3.0, 5.0, 2.0):
        gain[0] = value
        yield f(case.x)


@program(states=2)
def flag_that_is_a_tensor_of_the_cpu(case: Case) -> Seen:
    on = torch.tensor(True)
    f = case.fn(lambda x: x if on else -x)
    for value in (True, True, False, False, True):
        on.fill_(value)
        yield f(case.x)


@program(states=3)
def tensor_of_the_cpu_that_shares_an_array(case: Case) -> Seen:
    table = np.array([2.0, 1.0], dtype=np.float32)
    shared = torch.from_numpy(table)
    f = case.fn(lambda x: x * shared[0].item())
    for table[0] in (2.0, 2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def tensor_of_the_cpu_moved_inside(case: Case) -> Seen:
    table = torch.tensor([1.0, 2.0, 3.0])
    f = case.fn(lambda x: x + table.to(x.device))
    for value in (2.0, 2.0, 3.0, 5.0, 2.0):
        table[0] = value
        yield f(case.x)


@program(states=2)
def list_of_a_tensor_of_the_cpu(case: Case) -> Seen:
    order = torch.tensor([2, 0, 1])
    f = case.fn(lambda x: torch.stack([x[i] for i in order.tolist()]))
    yield f(case.x)
    yield f(case.x)
    order.copy_(torch.tensor([0, 1, 2]))
    yield f(case.x)
    order.copy_(torch.tensor([2, 0, 1]))
    yield f(case.x)


@program(states=3)
def length_of_a_mask_of_the_cpu(case: Case) -> Seen:
    mask = torch.tensor([True, False, True])
    f = case.fn(lambda x: x[: int(mask.sum())])
    yield f(case.x)
    mask[1] = True
    yield f(case.x)
    mask[:] = False
    yield f(case.x)


@program(states=3)
def tensor_of_the_cpu_made_inside(case: Case) -> Seen:
    values = [1.0, 2.0, 3.0]
    f = case.fn(lambda x: x + torch.tensor(values).cumsum(0).to(x.device))
    for values[0] in (1.0, 1.0, 3.0, 5.0, 1.0):
        yield f(case.x)


@program(states=3)
def argument_on_the_cpu(case: Case) -> Seen:
    f = case.fn(lambda x, gain: x * gain)
    for value in (2.0, 3.0, 2.0):
        yield f(case.x, torch.tensor(value))


@program(states=3)
def argument_that_is_an_array(case: Case) -> Seen:
    f = case.fn(lambda x, table: x * float(table[0]))
    table = np.array([2.0, 1.0])
    for table[0] in (2.0, 2.0, 3.0, 5.0, 2.0):
        yield f(case.x, table)


@program(states=2)
def error_of_the_program_by_a_flag(case: Case) -> Seen:
    s = types.SimpleNamespace(bad=False)

    def f(x):
        if s.bad:
            raise ValueError("bad state")
        return x * 2

    f = case.fn(f)
    for s.bad in (False, False, True, True, False):
        try:
            yield f(case.x)
        except ValueError as error:
            yield str(error)


@program(states=2)
def error_in_the_first_call(case: Case) -> Seen:
    s = types.SimpleNamespace(table={})
    f = case.fn(lambda x: x * s.table["gain"])
    for gain in (None, None, 2.0, 3.0):
        if gain is not None:
            s.table["gain"] = gain
        try:
            yield f(case.x)
        except KeyError as error:
            yield str(error)


@program(states=2)
def error_of_a_shape_then_a_right_one(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x))
    yield f(case.x)
    for _ in range(2):
        try:
            yield f(case.tensor([1.0, 2.0]))
        except RuntimeError as error:
            yield "shapes cannot be multiplied" in str(error), m
    yield f(case.x), m


@program(states=2)
def error_leaves_tensors_and_python_alone(case: Case) -> Seen:
    total, s = case.x, types.SimpleNamespace(limit=5.0, calls=[])

    def f(x, fail):
        if fail:
            raise KeyError("asked to")
        total.add_(x)
        return total * 1

    f = case.fn(f)
    for fail in (False, True, False, True):
        try:
            yield f(case.x, fail), total
        except KeyError:
            yield "raised", total, s


@program(states=2)
def function_that_calls_itself(case: Case) -> Seen:
    s = types.SimpleNamespace(depth=2)

    def f(x, n=None):
        n = s.depth if n is None else n
        return x if n == 0 else f(x * 2, n - 1)

    wrapped = case.fn(f)
    for s.depth in (2, 2, 3, 2):
        yield wrapped(case.x)


@program(states=2)
def jitted_function_with_state_inside_another(case: Case) -> Seen:
    s = types.SimpleNamespace(turn=0)

    def inner(x):
        s.turn = 1 - s.turn
        return x + s.turn

    inner = case.fn(inner)
    outer = case.fn(lambda x: inner(x) * 10)
    for i in range(4):
        yield outer(case.x + i), s.turn
    yield inner(case.x), s.turn
    yield outer(case.x), s.turn


@program(states=3)
def two_jitted_functions_share_state(case: Case) -> Seen:
    s = types.SimpleNamespace(gain=2.0, turn=0)

    def write(x):
        s.turn = (s.turn + 1) % 3
        return x + s.turn

    write, read = case.fn(write), case.fn(lambda x: x * s.turn)
    for i in range(4):
        yield write(case.x + i), read(case.x), s.turn


@program(states=3)  # each of two numbers, and any number
def methods_of_two_instances(case: Case) -> Seen:
    class Scaler:
        def __init__(self, gain):
            self.gain = gain

        def scale(self, x):
            return x * self.gain

    a, b = Scaler(2.0), Scaler(3.0)
    f = case.fn(lambda s, x: s.scale(x))
    for s in (a, b, a, b):
        yield f(s, case.x)


@program(states=2)
def object_argument_of_two_classes(case: Case) -> Seen:
    class Double:
        gain = 2.0

        def run(self, x):
            return x * self.gain

    class Shift(Double):
        def run(self, x):
            return x + self.gain

    f = case.fn(lambda layer, x: layer.run(x))
    a, b = Double(), Shift()
    for layer in (a, b, b, a):
        yield f(layer, case.x)


@program(states=2)
def modules_as_arguments(case: Case) -> Seen:
    f = case.fn(lambda m, x: m(x))
    a, b = case.linear(), case.linear()
    for m in (a, b, a, b):
        m.zero_grad()
        f(m, case.x).sum().backward()
        yield m


@program(states=2)
def one_tensor_as_two_arguments(case: Case) -> Seen:
    def f(a, b):
        a.add_(1)
        return a * b

    f = case.fn(f)
    for same in (True, False, False, True):
        a = case.x
        b = a if same else case.x
        yield f(a, b), a, b


@program(states=2)
def view_and_its_base_as_arguments(case: Case) -> Seen:
    def f(base, part):
        part.mul_(2)
        return base.sum()

    f = case.fn(f)
    for i in range(3):
        base = case.rows + i
        yield f(base, base[i % 2]), base


@program(states=3)
def extra_positional_and_keyword_arguments(case: Case) -> Seen:
    f = case.fn(lambda x, *more, **named: x * len(more) + sum(named.values()))
    yield f(case.x, 1, 2, a=1.0)
    yield f(case.x, 1, a=1.0, b=2.0)
    yield f(case.x, 1, 2, a=3.0)
    yield f(case.x, 1, 2, a=1.0)


@program(states=2)
def keys_of_a_dict_argument(case: Case) -> Seen:
    f = case.fn(lambda batch: sum(len(name) * v for name, v in batch.items()))
    for names in ("ab", "ac", ("long", "b"), "ab"):
        yield f(dict.fromkeys(names, case.x))


@program(states=2)
def training_flag_of_one_layer(case: Case) -> Seen:
    m = case.on(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    f = case.fn(lambda x: m(x))
    for frozen in (False, True, True, False):
        m.train()
        m[1].train(not frozen)
        yield f(case.rows), m


@program(states=2)
def array_of_a_tensor_of_the_cpu(case: Case) -> Seen:
    order = torch.tensor([2.0, 0.0, 1.0])
    f = case.fn(lambda x: x * float(order.numpy()[0]))
    for order[0] in (2.0, 2.0, 3.0, 2.0):
        yield f(case.x)
