"""More programs that need the numbers themselves (see `numbers_in_variables`)."""

import operator
from types import SimpleNamespace

import torch

from tests.jitting.numbers_in_variables import needing, traced


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


def a_symbolic_number(s, x):
    s.n += 1
    return x + isinstance(s.n, torch.SymFloat)


for run in (an_equal_complex_number, the_type_of_a_result, a_branch):
    needing(run)
for run in (the_same_number, the_identity_of_a_number, a_symbolic_number):
    needing(run)


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
