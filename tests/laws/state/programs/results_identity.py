"""L7: types and identity inside a call, and results that share or write memory."""

import asyncio
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("results", "eager jit rows trace")
Seen = Iterator[Any]


def calls(case: Case, f: Any) -> Seen:
    """Four calls, the last of which repeats the first."""
    f = case.fn(f)
    for i in (0, 1, 2, 0):
        yield f(case.x + i)


@program
def booleans_of_types(case: Case) -> Seen:
    def f(x):
        return (
            type(x) is torch.Tensor,
            isinstance(x, torch.Tensor),
            isinstance(x, nn.Parameter),
            torch.is_tensor(x),
            torch.is_floating_point(x),
            type(x * 2) is torch.Tensor,
        )

    yield from calls(case, f)


@program
def type_decides_what_is_computed(case: Case) -> Seen:
    def f(x):
        table = {torch.Tensor: 2, list: 3}
        return x * table[type(x)]

    yield from calls(case, f)


@program
def type_of_a_parameter(case: Case) -> Seen:
    m = case.linear()

    def f(x):
        return x * (2 if type(m.weight) is nn.Parameter else 3), type(m.weight).__name__

    yield from calls(case, f)


@program(states=2)
def identity_of_arguments(case: Case) -> Seen:
    f = case.fn(lambda x, y: x * 2 if x is y else x + y)
    a, b = case.x, case.x + 1
    yield f(a, b)
    yield f(a, a)
    yield f(a, b)


@program(states=2, modes="eager jit rows")
def identity_of_an_argument_and_state(case: Case) -> Seen:
    s = types.SimpleNamespace(kept=case.x)
    f = case.fn(lambda x: x * 2 if x is s.kept else x)
    yield f(s.kept)
    yield f(case.x)
    yield f(s.kept)


@program
def result_of_a_generator_function(case: Case) -> Seen:
    f = case.fn(lambda x: list(x * i for i in range(3)))  # noqa: C400
    for i in range(3):
        yield f(case.x + i)


@program(each_call=True)
def generator_that_is_returned(case: Case) -> Seen:
    def f(x):
        for i in range(2):
            yield x * i

    f = case.fn(f)
    for i in range(3):
        yield list(f(case.x + i))


@program(each_call=True, modes="eager jit rows")
def coroutine_that_is_returned(case: Case) -> Seen:
    async def f(x):
        return x * 2

    f = case.fn(f)
    for i in range(3):
        yield asyncio.run(f(case.x + i))


@program
def views_of_one_tensor(case: Case) -> Seen:
    def f(x):
        y = x * 2
        return y, y[:2], y.view(3, 1)

    f = case.fn(f)
    for i in range(3):
        y, part, column = f(case.x + i)
        part.add_(10)
        yield y, part, column


@program
def view_of_an_argument(case: Case) -> Seen:
    f = case.fn(lambda x: x[1:])
    for i in range(3):
        x = case.x + i
        part = f(x)
        part.mul_(10)
        yield x, part


@program
def in_place_method_returns_the_argument(case: Case) -> Seen:
    f = case.fn(lambda x: x.add_(1))
    for i in range(3):
        x = case.x + i
        yield f(x) is x, x


@program
def tuple_of_split_and_chunk(case: Case) -> Seen:
    yield from calls(case, lambda x: (x.split(2), torch.chunk(x, 3), x.unbind()))


@program
def list_of_meshgrid_and_tuple_of_unsafe(case: Case) -> Seen:
    yield from calls(case, lambda x: (torch.meshgrid(x, x, indexing="ij"), torch.atleast_2d(x, x)))


@program
def parameter_made_inside(case: Case) -> Seen:
    f = case.fn(lambda x: nn.Parameter(x * 2))
    for i in range(3):
        yield f(case.x + i), type(f(case.x)).__name__


@program(modes="eager jit rows")
def numpy_values_in_a_result(case: Case) -> Seen:
    yield from calls(case, lambda x: (x * 2, np.float64(1.5), np.arange(3), np.int32(2)))


@program
def subclass_of_dict_as_result(case: Case) -> Seen:
    class Record(dict):
        kind = "record"

    yield from calls(case, lambda x: Record(y=x * 2, name="a"))


@program
def subclass_of_list_with_attributes(case: Case) -> Seen:
    class Tagged(list):
        pass

    def f(x):
        made = Tagged([x, x + 1])
        made.tag = "a"
        return made

    yield from calls(case, f)


@program
def module_returned(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: (m, m(x)))
    for i in range(3):
        got, y = f(case.x + i)
        yield got is m, y


@program
def function_returned(case: Case) -> Seen:
    def scaled(x):
        return x * 2

    f = case.fn(lambda x: (scaled, x + 1, torch.relu))
    for i in range(3):
        got, y, relu = f(case.x + i)
        yield got is scaled, y, relu is torch.relu


@program(each_call=True)
def closure_returned(case: Case) -> Seen:
    def f(x):
        y = x * 2
        return lambda z: y + z

    f = case.fn(f)
    for i in range(3):
        yield f(case.x + i)(case.x)


@program
def dtype_and_device_and_layout(case: Case) -> Seen:
    yield from calls(case, lambda x: (x.dtype, x.device, x.layout, x.is_contiguous()))


@program
def scalars_and_empty_tensors(case: Case) -> Seen:
    yield from calls(case, lambda x: (x.sum(), x[:0], x.long(), x > 1, x.to(torch.complex64)))


@program(states=2)
def results_of_inference_mode(case: Case) -> Seen:
    m, kept = case.linear(), types.SimpleNamespace()

    def f(x):
        with torch.inference_mode():
            y = m(x)
            kept.y = y * 2
            row = y[:1]
        return y, x * 2, row, y

    f = case.fn(f)

    def seen(made):
        return [(t, t.is_inference(), t.requires_grad) for t in (*made, kept.y)]

    for _ in range(3):
        made = f(case.x)
        yield seen(made), made[0] is made[3]
    with torch.inference_mode():
        yield seen(f(case.x))


@program(modes="eager jit rows")
def attribute_of_a_dict_or_list_of_ones_own(case: Case) -> Seen:
    class Named(dict):
        pass

    class Listed(list):
        pass

    def f(x):
        named = Named(a=x * 2)
        named.extra = [x]  # type: ignore[attr-defined]
        listed = Listed([named])
        return named, named.extra, listed, [listed, listed]  # type: ignore[attr-defined]

    f = case.fn(f)
    for i in range(3):
        named, extra, listed, twice = f(case.x + i)
        yield named, named.extra is extra, listed[0] is named
        yield twice[0] is listed, twice[1] is listed
