"""L4: a refusal that is caught elsewhere: by helpers, properties, hooks, backwards."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.laws.state import settings
from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("swallowed", "jit rows trace")
Seen = Iterator[Any]


def calls(case: Case, f: Any) -> Seen:
    """Three calls, with positive, negative and positive values."""
    f = case.fn(f)
    for x in (case.x, -case.x, 2 * case.x):
        yield f(x)


@program
def except_in_a_helper_of_another_module(case: Case) -> Seen:
    yield from calls(case, lambda x: x * settings.value_or(x.mean(), 1.0))


@program
def except_in_a_library_that_formats(case: Case) -> Seen:
    import logging

    logger = logging.getLogger("tests.laws.formats")
    logger.propagate = False
    logger.handlers[:] = [logging.NullHandler()]

    def f(x):
        text = ""
        try:
            text = f"{x.sum().item():.1f}"
        except Exception:
            logger.exception("no text")
        return x * len(text)

    yield from calls(case, f)


@program
def getattr_with_a_default_over_a_property(case: Case) -> Seen:
    class Norm:
        def __init__(self, x):
            self.x = x

        @property
        def value(self):
            if self.x.sum() > 0:
                return 2.0
            raise AttributeError("value")

    yield from calls(case, lambda x: x * getattr(Norm(x), "value", 3.0))


@program
def hasattr_over_a_property(case: Case) -> Seen:
    class Norm:
        def __init__(self, x):
            self.x = x

        @property
        def value(self):
            try:
                return self.x.sum().item()
            except RuntimeError:
                raise AttributeError("value") from None

    yield from calls(case, lambda x: x * 2 if hasattr(Norm(x), "value") else x)


@program
def retry_with_a_smaller_part(case: Case) -> Seen:
    def f(x):
        for n in (3, 2, 1):
            try:
                return x[:n] * x[:n].sum().item()
            except RuntimeError:
                continue
        return x

    yield from calls(case, f)


@program
def fallback_of_a_conversion(case: Case) -> Seen:
    def f(x):
        try:
            table = x.numpy()
        except Exception:
            table = x.detach().cpu().numpy()
        return x * float(table[0])

    yield from calls(case, f)


@program
def except_around_a_boolean_index(case: Case) -> Seen:
    def f(x):
        try:
            return x[x > 1].sum()
        except Exception:
            return x.sum()

    yield from calls(case, f)


@program
def except_around_nonzero_and_unique(case: Case) -> Seen:
    def f(x):
        try:
            return x * len(x.clamp(min=0).unique())
        except Exception:
            return x

    yield from calls(case, f)


@program
def except_around_an_assert(case: Case) -> Seen:
    def f(x):
        try:
            assert x.sum() > 0
        except Exception:
            return -x
        return x

    yield from calls(case, f)


@program
def except_around_iteration_in_a_module(case: Case) -> Seen:
    class Net(nn.Module):
        def forward(self, x):
            try:
                n = max(v.item() for v in x)
            except Exception:
                n = 1.0
            return x * n

    yield from calls(case, Net())


@program
def except_group(case: Case) -> Seen:
    def f(x):
        n = 1.0
        try:
            n = x.mean().item()
        except* Exception:
            pass
        return x * n

    yield from calls(case, f)


@program
def swallowed_in_a_hook(case: Case) -> Seen:
    m = case.linear()

    def hook(module, args, y):
        try:
            return y * y.sum().item()
        except Exception:
            return y

    m.register_forward_hook(hook)
    yield from calls(case, lambda x: m(x))


@program
def swallowed_in_the_backward(case: Case) -> Seen:
    class Clip(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            try:
                return grad * grad.sum().item()
            except Exception:
                return grad

    def f(x):
        x = x.clone().requires_grad_()
        y = (Clip.apply(x) ** 2).sum()
        return torch.autograd.grad(y, x)[0]

    yield from calls(case, f)


@program
def swallowed_by_the_caller_of_a_nested_function(case: Case) -> Seen:
    inner = case.fn(lambda x: x * x.sum().item())

    def f(x):
        try:
            return inner(x)
        except Exception:
            return x

    yield from calls(case, f)


@program
def an_ordinary_error_is_caught(case: Case) -> Seen:
    """What the trace has nothing to do with may be caught: it is part of the program."""

    def f(x):
        try:
            return x.view(2, 5)
        except RuntimeError:
            return x * 2

    yield from calls(case, f)


@program
def a_missing_key_is_caught(case: Case) -> Seen:
    cfg: dict[str, float] = {}

    def f(x):
        try:
            return x * cfg["gain"]
        except KeyError:
            return x

    f = case.fn(f)
    for _ in range(3):
        yield f(case.x)


@program
def an_attribute_that_tensors_lack(case: Case) -> Seen:
    yield from calls(case, lambda x: x * 2 if hasattr(x, "bananas") else getattr(x, "kiwi", x) * 3)


@program
def check_that_a_caller_catches(case: Case) -> Seen:
    def check(x):
        if x.sum() > 0:
            raise ValueError("positive")

    def f(x):
        try:
            check(x)
        except ValueError:
            return -x
        return x

    yield from calls(case, f)
