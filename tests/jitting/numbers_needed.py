"""More programs that need the numbers themselves (see `numbers_in_variables`)."""

import contextlib
import datetime
import json
import operator
from types import SimpleNamespace

import torch

from tests.jitting.numbers_in_variables import count_of, needing, traced

number_of, is_one = id, operator.is_


def an_equal_complex_number(s, x):
    s.n += 1
    s.other = s.n == 3 + 0j, s.n != 4 + 0j
    return x


def the_type_of_a_result(s, x):
    s.n += 1
    whole = torch.arange(2, device=x.device)
    return torch.result_type(whole, s.n), torch.result_type(whole, s.n / 2)


def a_branch(s, x):
    s.n += 1
    return torch.cond(x.sum() > 0, lambda x: x * s.n, lambda x: x - s.n, (x,))


def the_same_number(s, x):
    s.n += 1
    step = s.n
    is_new = s.other is not step
    s.other = step
    return x, is_new, s.n is s.other


def the_identity_of_a_number(s, x):
    s.n += 1
    s.other = s.n
    return x, id(s.n) == id(s.other), operator.is_(s.other, s.n)


def the_identity_by_other_names(s, x):
    is_new, s.n = not is_one(s.n, s.other), s.n + 1
    s.other = s.n
    return x, is_new, number_of(s.other) == number_of(s.n)


def a_symbolic_number(s, x):
    s.n += 1
    return x + isinstance(s.n, torch.SymFloat)


for run in (an_equal_complex_number, the_type_of_a_result, a_branch):
    needing(run)
for run in (the_same_number, the_identity_of_a_number, a_symbolic_number):
    needing(run)
needing(the_identity_by_other_names)


def is_same(a, b):
    return a is b


def has_same(*values, **others):
    return any(a is b for a in values for b in others.values())


class Compared:
    def __init__(self, value):
        self.first = value

    def differs(self, value):
        return value is not self.first


def the_same_number_in_another_function(s, x):
    is_new, s.n = not is_same(s.n, s.other), s.n + 1
    s.other = s.n
    return x, is_new, is_same(s.other, s.n)


def the_same_number_in_keywords_and_loops(s, x):
    is_new, s.n = not has_same(s.n, other=s.other), s.n + 1
    s.other = s.n
    return x, is_new


def the_same_number_in_an_object(s, x):
    is_new, s.n = Compared(s.other).differs(s.n), s.n + 1
    s.other = s.n
    return x, is_new


for run in (
    the_same_number_in_another_function,
    the_same_number_in_keywords_and_loops,
    the_same_number_in_an_object,
):
    needing(run)


class Swallowing:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        return kind is not None and issubclass(kind, TypeError)


def a_number_in_a_manager_that_swallows_errors(s, x):
    s.n += 1
    with Swallowing():
        x = x * datetime.timedelta(seconds=s.n).total_seconds()
    return x


def a_number_in_a_stack_that_swallows_errors(s, x):
    s.n += 1
    with contextlib.ExitStack() as stack:
        stack.push(lambda *error: True)
        x = x * len(json.dumps(s.n))
    return x


math = SimpleNamespace()  # has the name of a module of Python
callable = lambda s: datetime.timedelta(seconds=s.n).total_seconds()  # and of a function


@traced
def a_number_in_what_has_the_name_of_a_module(device, jit):
    s = SimpleNamespace(n=0)
    math.late = lambda: datetime.timedelta(seconds=s.n).total_seconds()

    def step(x):
        s.n += 1
        found = -1.0
        try:
            found = math.late()
        except TypeError:
            pass
        return x * found

    return jit(step), lambda i: count_of(s, i), lambda: vars(s)


def a_number_in_what_has_the_name_of_a_builtin_function(s, x):
    s.n += 1
    found = -1.0
    try:
        found = callable(s)
    except TypeError:
        pass
    return x * found


needing(a_number_in_what_has_the_name_of_a_builtin_function)
needing(a_number_in_a_manager_that_swallows_errors)
needing(a_number_in_a_stack_that_swallows_errors)


@traced
def a_number_that_only_the_backward_pass_reads(device, jit):
    s = SimpleNamespace(n=0, scale=1)
    weight = torch.ones(2, device=device, requires_grad=True)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.n = s.n
            return x * s.n

        @staticmethod
        def backward(ctx, gradient):
            return gradient * (s.scale * ctx.n)

    step = jit(lambda x: Scaled.apply(x * weight).sum())

    def call(x):
        loss = step(x)
        s.n += 1
        return torch.autograd.grad(loss, weight)

    def change(i):
        s.scale = i

    return call, change, lambda: vars(s)
