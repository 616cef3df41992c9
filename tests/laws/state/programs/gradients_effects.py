"""L5: what hooks and functions with a backward of their own change, or take from what moves on."""

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("gradients", "jit rows")
Seen = Iterator[Any]


def _loss_returned(case: Case, hook: Callable[[Any], Any], kept: Any, inside: bool) -> Seen:
    """A hook of an intermediate tensor, with `backward()` inside or outside the function."""
    w = case.x.requires_grad_()

    def f(x):
        h = w * x
        h.register_hook(hook)
        loss = h.sum()
        if inside:
            loss.backward()
        return loss

    f = case.fn(f)
    for i in range(4):
        w.grad = None
        loss = f(case.x + i)
        if not inside:
            loss.backward()
        yield loss.detach(), w, kept


@program
def loss_that_went_backward_with_a_hook_that_writes(case: Case) -> Seen:
    total = case.x
    yield from _loss_returned(case, lambda g: total.add_(g) * 1, total, inside=True)


@program(each_call=True)
def loss_that_went_backward_with_a_hook_that_counts(case: Case) -> Seen:
    kept: list[int] = []
    yield from _loss_returned(case, lambda g: (kept.append(1), g * len(kept))[1], kept, inside=True)


@program(each_call=True)
def loss_that_went_backward_with_a_hook_that_takes_items(case: Case) -> Seen:
    items = itertools.count(1)
    yield from _loss_returned(case, lambda g: g * next(items), None, inside=True)


@program(each_call=True)
def loss_that_went_backward_through_a_function_that_counts(case: Case) -> Seen:
    counts = {"backward": 0}

    class Count(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            counts["backward"] += 1
            return grad

    w = case.x.requires_grad_()

    def f(x):
        loss = Count.apply(w * x).sum()
        loss.backward()
        return loss

    f = case.fn(f)
    for i in range(3):
        yield f(case.x + i), w, counts


@program
def backward_outside_with_a_hook_that_writes(case: Case) -> Seen:
    total = case.x
    yield from _loss_returned(case, lambda g: total.add_(g) * 1, total, inside=False)


@program
def backward_outside_with_a_hook_that_writes_what_was_written(case: Case) -> Seen:
    total, w = case.x, case.x.requires_grad_()

    def f(x):
        total.mul_(2)
        h = w * x
        h.register_hook(lambda g: total.add_(1) * 0 + g)
        return h.sum()

    f = case.fn(f)
    for i in range(3):
        f(case.x + i).backward()
        yield total, w


@program
def backward_outside_with_a_hook_that_takes_items(case: Case) -> Seen:
    items = itertools.count(1)
    yield from _loss_returned(case, lambda g: g * next(items), None, inside=False)


@program
def backward_outside_with_a_hook_that_draws(case: Case) -> Seen:
    yield from _loss_returned(case, lambda g: g * random.random(), None, inside=False)


@program
def backward_outside_with_a_hook_that_makes_a_table(case: Case) -> Seen:
    @functools.lru_cache
    def table() -> torch.Tensor:
        return case.tensor([2.0, 3.0, 4.0]) * 2

    yield from _loss_returned(case, lambda g: g * table(), None, inside=False)


@program(each_call=True)
def backward_outside_with_a_hook_that_fills_a_cache(case: Case) -> Seen:
    @functools.lru_cache
    def gain(size: int) -> float:
        return size * 2.0

    yield from _loss_returned(case, lambda g: g * gain(g.shape[0]), None, inside=False)


@program(each_call=True)
def result_with_a_gradient_scaled_in_a_cycle(case: Case) -> Seen:
    scales, w = itertools.cycle([1.0, 2.0, 3.0]), case.x.requires_grad_()
    f = case.fn(lambda x: (w * x * next(scales)).sum())
    for i in range(5):
        w.grad = None
        f(case.x + i).backward()
        yield w
