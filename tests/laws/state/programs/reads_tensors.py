"""L1: tensors in Python state that are replaced, appear, vanish, or change their nature."""

import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("reads", "eager jit rows")
Seen = Iterator[Any]


@program(states=4)
def tensor_replaced_by_another(case: Case) -> Seen:
    s = types.SimpleNamespace(w=case.x)
    f = case.fn(lambda x: x * s.w)
    for i in range(4):
        yield f(case.x)
        s.w = case.x + i


@program(states=4)
def tensor_replaced_in_a_dict_and_a_list(case: Case) -> Seen:
    parts: dict[str, Any] = {"a": [case.x], "b": (case.x,)}
    f = case.fn(lambda x: x * parts["a"][0] + parts["b"][0])
    for i in range(4):
        yield f(case.x)
        parts["a"][0], parts["b"] = case.x + i, (case.x - i,)


@program(states=2)
def tensor_that_appears_and_vanishes(case: Case) -> Seen:
    s = types.SimpleNamespace(mask=None)
    f = case.fn(lambda x: x if s.mask is None else x * s.mask)
    for s.mask in (None, case.x, case.x + 1, None):
        yield f(case.x)


@program(states=3)
def tensor_of_another_shape_or_dtype(case: Case) -> Seen:
    s = types.SimpleNamespace(w=case.x)
    f = case.fn(lambda x: (x * s.w).sum(0))
    for s.w in (case.x, case.rows, case.x.double(), case.x):
        yield f(case.x)


@program(states=2)
def tensor_that_becomes_a_number(case: Case) -> Seen:
    s = types.SimpleNamespace(gain=case.tensor(2.0))
    f = case.fn(lambda x: x * s.gain)
    for s.gain in (case.tensor(2.0), 3.0, 3.0, case.tensor(4.0)):
        yield f(case.x)


@program(states=2)
def tensor_that_requires_grad_later(case: Case) -> Seen:
    s = types.SimpleNamespace(w=case.x)
    f = case.fn(lambda x: x * s.w)
    yield f(case.x)
    s.w.requires_grad_()
    f(case.x).sum().backward()
    yield s.w
    yield f(case.x)
    s.w.requires_grad_(False)
    yield f(case.x)


@program
def number_of_tensors_in_a_list(case: Case) -> Seen:
    parts = [case.x]
    f = case.fn(lambda x, n: sum(parts[:n], x))
    yield f(case.x, 1)
    parts[0] = case.x * 2
    yield f(case.x, 1)
    parts[0].add_(1)
    yield f(case.x, 1)


@program(states=2)
def list_of_tensors_that_grows(case: Case) -> Seen:
    parts = [case.x]
    f = case.fn(lambda x: sum(parts, x))
    yield f(case.x)
    parts.append(case.x * 3)
    yield f(case.x)
    parts[1] = case.x * 5
    yield f(case.x)
    parts.pop()
    yield f(case.x)


@program(states=2)
def dict_of_tensors_in_another_order(case: Case) -> Seen:
    parts = {"a": case.x, "b": case.x * 2}
    f = case.fn(lambda x: torch.stack([*parts.values(), x]))
    for _ in range(4):
        yield f(case.x)
        first = next(iter(parts))
        parts[first] = parts.pop(first)


@program(states=2)
def two_names_of_one_tensor(case: Case) -> Seen:
    s = types.SimpleNamespace(a=case.x, b=None)
    s.b = s.a

    def f(x):
        s.a.add_(x)
        return s.b * 1

    f = case.fn(f)
    yield f(case.x), s
    s.b = case.x * 10
    yield f(case.x), s
    yield f(case.x), s
    s.b = s.a
    yield f(case.x), s


@program(states=2)
def identity_of_two_tensors_asked(case: Case) -> Seen:
    s = types.SimpleNamespace(a=case.x, b=None)
    f = case.fn(lambda x: x * 2 if s.a is s.b else x)
    for b in (s.a, case.x, case.x + 1, s.a):
        s.b = b
        yield f(case.x)


@program(states=2)
def view_that_is_replaced_by_its_copy(case: Case) -> Seen:
    base = case.rows
    s = types.SimpleNamespace(row=base[0])

    def f(x):
        base.add_(1)
        return s.row + x

    f = case.fn(f)
    yield f(case.x), base
    s.row = base[0].clone()
    yield f(case.x), base
    yield f(case.x), base
    s.row = base[0]
    yield f(case.x), base


@program(states=4)
def parameter_replaced(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x))
    for i in range(4):
        m.zero_grad()
        f(case.x).sum().backward()
        yield m
        m.weight = nn.Parameter(torch.full((2, 3), float(i), device=case.device))


@program(states=4)
def data_of_a_parameter_replaced(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x))
    for i in range(4):
        yield f(case.x)
        m.weight.data = torch.full((2, 3), float(i), device=case.device)


@program(states=2)
def bias_that_is_dropped(case: Case) -> Seen:
    m = case.linear()
    bias = m.bias
    f = case.fn(lambda x: m(x))
    for m.bias in (bias, None, None, bias):
        yield f(case.x)


@program(states=2)
def buffer_that_is_none(case: Case) -> Seen:
    m = nn.Module()
    m.register_buffer("mask", None)
    f = case.fn(lambda x: x if m.mask is None else x * m.mask)
    for m.mask in (None, case.x, case.x + 1, None):
        yield f(case.x)


@program(states=4)
def parameters_in_a_parameter_list(case: Case) -> Seen:
    m = nn.ParameterList([nn.Parameter(case.x), nn.Parameter(case.x * 2)])
    f = case.fn(lambda x: sum((x * p).sum() for p in m))
    for i in range(4):
        f(case.x).backward()
        yield m
        m[0] = nn.Parameter(case.x + i)


@program(states=3)
def parameters_as_keys_of_a_dict(case: Case) -> Seen:
    m = case.linear()
    scales = {p: case.tensor(1.0) for p in m.parameters()}

    def f(x):
        with torch.no_grad():
            for p, scale in scales.items():
                scale.add_(1)
                p.mul_(scale)
        return m(x)

    f = case.fn(f)
    for i in range(3):
        yield f(case.x + i), m
        scales[m.bias] = case.tensor(0.5)


@program(states=3)
def float_arguments_that_are_equal(case: Case) -> Seen:
    f = case.fn(lambda x, v: (torch.full_like(x, v).reciprocal(), x * v))
    for v in (0.0, -0.0, 0, 0.0):
        yield f(case.x, v)


@program(states=3)
def boolean_and_integer_arguments(case: Case) -> Seen:
    f = case.fn(lambda x, v: (x.long() * v, type(v).__name__, v))
    for v in (1, True, 1.0, 1):
        yield f(case.x, v)


@program(states=4)
def defaults_left_out_and_given(case: Case) -> Seen:
    f = case.fn(lambda x, gain=2.0, *, shift=0.0: x * gain + shift)
    yield f(case.x)
    yield f(case.x, shift=1.0)
    yield f(case.x, 2.0)
    yield f(case.x, gain=2.0, shift=1.0)


@program(states=2)
def not_a_number_as_an_argument(case: Case) -> Seen:
    f = case.fn(lambda x, v: torch.nan_to_num(x * v, nan=-1.0))
    for v in (float("nan"), float("nan"), 2.0, float("nan")):
        yield f(case.x, v)


@program(states=3)
def enum_string_and_none_arguments(case: Case) -> Seen:
    f = case.fn(lambda x, how: x if how is None else getattr(x, how)())
    for how in (None, "sum", "mean", None):
        yield f(case.x, how)


@program(states=3)
def attribute_of_a_tensor_argument(case: Case) -> Seen:
    f = case.fn(lambda x: x * getattr(x, "gain", 1.0))
    for gain in (2.0, 2.0, 3.0, None):
        x = case.x
        if gain is not None:
            x.gain = gain
        yield f(x), vars(x)


@program(states=2)
def attribute_of_a_view_that_is_an_argument(case: Case) -> Seen:
    rows = case.rows
    f = case.fn(lambda x: x * x.gain)
    for gain in (2.0, 2.0, 2.0, 3.0):
        row = rows[1]
        row.gain = gain
        yield f(row)


@program(each_call=True)
def tensor_that_is_an_attribute_of_an_argument(case: Case) -> Seen:
    f = case.fn(lambda x: x * x.mask)
    for k in (1.0, 1.0, 2.0):
        x = case.x
        x.mask = case.tensor([k, 0.0, k])
        yield f(x)


@program(states=4)
def attribute_of_a_parameter(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x) * getattr(m.weight, "gain", 1.0))
    yield f(case.x)
    yield f(case.x)
    m.weight.gain = 3.0
    yield f(case.x)
    m.weight.gain = 4.0
    yield f(case.x)
    del m.weight.gain
    yield f(case.x)
