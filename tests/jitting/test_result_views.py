"""Views with gradients that a jitted function returns, as they are on the CPU."""

import pytest
import torch
from torch.autograd import Function

import calque

ROWS = [[1.0, 2.0], [3.0, 4.0]]


class Reversed(Function):
    """What domain adaptation trains against: a view whose gradient has the other sign."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g


class First(Function):
    """A part whose gradient reaches all of its base."""

    @staticmethod
    def forward(ctx, x):
        return x[0]

    @staticmethod
    def backward(ctx, g):
        return torch.stack([5 * g, 7 * g])


def hooked(x):
    v = x[0]
    v.register_hook(lambda g: 10 * g)
    return v


def hooked_on_the_way(x):
    v = x.view(-1)
    v.register_hook(lambda g: 10 * g)
    return v[1:]


def retaining(x):
    v = x[0]
    v.retain_grad()
    return v


VIEWS = {
    "reversed": Reversed.apply,
    "first": First.apply,
    "part of a reversed": lambda x: Reversed.apply(x).unbind()[0],
    "hooked": hooked,
    "hooked on the way": hooked_on_the_way,
    "retaining": retaining,
    "two steps": lambda x: x.t()[0],
}


def base_of(where, x, w):
    """A tensor that was there before the call, or is made in it, with a graph or as a leaf."""
    if where == "state":
        return w
    if where == "made":
        return (x.detach() * 3).requires_grad_()
    if where == "made, as a view":
        return (x.detach() * 3).view(2, 2).requires_grad_()
    return x if where == "argument" else x * w


def gradients(device, jit, where, view):
    w = torch.tensor(ROWS, device=device, requires_grad=True)

    def fn(x):
        base = base_of(where, x, w)
        return base, view(base)

    run = jit(fn)
    for _ in range(2):
        x = torch.tensor(ROWS, device=device, requires_grad=True)
        w.grad = None
        base, v = run(x)
        (v.sum() * 2 + base.sum()).backward()
    leaves = dict.fromkeys([x, w, base] if base.is_leaf else [x, w])
    found = [None if t.grad is None else t.grad.tolist() for t in leaves]
    found.append(v.grad.tolist() if v.retains_grad and v.grad is not None else None)
    return found, v.tolist(), v._base is base


@pytest.mark.parametrize("where", ["argument", "state", "made", "made, as a view", "computed"])
@pytest.mark.parametrize("view", list(VIEWS))
def test_the_gradient_of_a_view_goes_where_it_goes_eagerly(view, where):
    expected = gradients("cpu", lambda fn: fn, where, VIEWS[view])
    assert gradients("jax", calque.jit, where, VIEWS[view]) == expected


@pytest.mark.parametrize("view", [lambda y: y[0], lambda y: y.t()[:, 1:], lambda y: y.unbind()[0]])
@pytest.mark.parametrize("leaf", [lambda y: y, lambda y: y.t(), lambda y: y.view(2, 2)])
@pytest.mark.parametrize("kept", [True, False])
def test_a_write_with_a_gradient_into_a_view_of_a_leaf_made_in_the_call_raises(view, leaf, kept):
    def fn(x):
        y = leaf(x * 2).requires_grad_()
        return (y, view(y)) if kept else (view(y),)

    run = calque.jit(fn)
    for _ in range(2):
        *_, v = run(torch.tensor(ROWS, device="jax"))
        before = v.tolist()
        with pytest.raises(RuntimeError, match="is being (used|modified)"):
            v.mul_(2)
        assert v.tolist() == before


@pytest.mark.parametrize("order", ["view first", "no_grad"])
def test_no_gradient_reaches_a_view_that_was_taken_without(order):
    @calque.jit
    def run(x):
        y = x * 2
        if order == "view first":
            v = y[0]
            y.requires_grad_()
        else:
            y.requires_grad_()
            with torch.no_grad():
                v = y[0]
        return y, v

    for _ in range(2):
        y, v = run(torch.tensor(ROWS, device="jax"))
        (y.sum() + v.sum()).backward()
        assert v.grad is None and y.grad.tolist() == [[1, 1], [1, 1]]


class Tagged(torch.Tensor):
    """A class that is one in Python only."""


def test_results_of_a_subclass_are_of_that_class():
    w = torch.ones(2, device="jax", requires_grad=True)

    @calque.jit
    def run(x):
        y = (x * w).as_subclass(Tagged)
        return y, y[0], x.as_subclass(Tagged), x * 2

    for _ in range(3):
        w.grad = None
        results = run(torch.tensor([2.0, 3.0], device="jax"))
        assert [type(one) for one in results] == [Tagged, Tagged, Tagged, torch.Tensor]
        (results[0].sum() + results[1] * 2).backward()
        assert w.grad is not None and w.grad.tolist() == [6, 3]
