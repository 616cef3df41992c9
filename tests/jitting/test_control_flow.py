"""`torch.cond`, `torch.while_loop`, `scan` and `map` inside of calque.jit agree with the CPU."""

import pytest
import torch
from torch._higher_order_ops import map as mapped
from torch._higher_order_ops import scan
from torch.utils import _pytree as pytree

import calque


def choose(x, w):
    return torch.cond(x.sum() > 0, lambda x: x @ w, lambda x: x * 3, (x,))


def choose_twice(x, w):
    def positive(x):
        return torch.cond(x.sum() > 2, lambda x: x * w, lambda x: x.sin(), (x,))

    return torch.cond(x.sum() > 0, positive, lambda x: x * 3, (x,))


def without_operands(x, w):
    return torch.cond(x.sum() > 0, lambda: x + w, lambda: x - w)


def of_containers(x, w):
    def double(d):
        return {"a": d["x"] @ w, "b": [d["y"] * 2]}

    def keep(d):
        return {"a": d["x"] + 0, "b": [d["y"] + 0]}

    return torch.cond(x.sum() > 0, double, keep, ({"x": x, "y": x[0] * 1},))


def carried_on(x, w):
    def step(carry, row):
        return torch.tanh(carry @ w + row), carry.sum()

    return scan(step, torch.zeros(3, device=x.device), x)


def backwards(x, w):
    def step(carry, row):
        return {"h": carry["h"] + row}, carry["h"] * row

    return scan(step, {"h": torch.zeros(3, device=x.device)}, x, reverse=True)


def of_rows(x, w):
    return mapped(lambda row, b: row @ w + b, x, x[0] * 1)


@pytest.mark.sampled(15)
@pytest.mark.filterwarnings("default:The .grad attribute")  # raised by Dynamo on the CPU
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    "fn",
    [choose, choose_twice, without_operands, of_containers, carried_on, backwards, of_rows],
    ids=lambda fn: fn.__name__,
)
def test_values_and_gradients_are_those_of_the_cpu(fn, gradients, sign):
    torch._dynamo.reset()
    given = [torch.rand(3, 3) * sign, torch.rand(3, 3)]

    def run(*args):
        found = pytree.tree_leaves(fn(*args))
        if not gradients:
            return found
        loss = sum(t.square().sum() for t in found)
        return [*(t.detach() for t in found), *torch.autograd.grad(loss, args, allow_unused=True)]

    want = run(*[t.clone().requires_grad_(gradients) for t in given])
    jitted = calque.jit(run)
    on_device = [t.to("jax").requires_grad_(gradients) for t in given]
    for _ in range(2):
        got = jitted(*on_device)
        for mine, theirs in zip(got, want, strict=True):
            assert (mine is None) <= (theirs is None)
            if mine is not None:
                torch.testing.assert_close(
                    mine.cpu(), torch.zeros(3, 3) if theirs is None else theirs
                )
    assert len(jitted.history) == 1


def test_one_program_serves_both_ways():
    jitted = calque.jit(choose)
    w = torch.rand(3, 3, device="jax")
    for sign in (1, -1, 1):
        x = torch.full((3, 3), float(sign), device="jax")
        torch.testing.assert_close(jitted(x, w), x @ w if sign > 0 else x * 3)
    assert len(jitted.history) == 1


def test_a_loop_runs_as_often_as_its_values_say():
    w = torch.ones(3, device="jax")

    @calque.jit
    def grow(x):
        return torch.while_loop(
            lambda i, x: x.sum() < 100,
            lambda i, x: (i + 1, x * 2 + w),
            (torch.zeros((), dtype=torch.int64, device="jax"), x),
        )

    count, found = grow(torch.ones(3, device="jax"))
    assert (count.item(), found.tolist()) == (5, [63.0] * 3)
    assert grow(torch.full((3,), 90.0, device="jax"))[0].item() == 0
    assert len(grow.history) == 1


def test_a_loop_refuses_to_lose_a_gradient():
    w = torch.ones(3, device="jax", requires_grad=True)

    @calque.jit
    def grow(x):
        return torch.while_loop(lambda x: x.sum() < 100, lambda x: (x + w,), (x,))

    x = torch.ones(3, device="jax")
    with pytest.raises(calque.TraceError, match="no gradient"):
        grow(x)
    with torch.no_grad():
        assert grow(x)[0].tolist() == [34.0] * 3


def test_a_branch_writes_to_what_it_closes_over():
    total = torch.zeros(3, device="jax")

    def add(x):
        total.add_(x)
        return x * 1

    @calque.jit
    def step(x):
        with torch.no_grad():
            return torch.cond(x.sum() > 0, add, lambda x: x * 2, (x,))

    ones = torch.ones(3, device="jax")
    assert [step(ones).tolist(), step(-ones).tolist()] == [[1.0] * 3, [-2.0] * 3]
    assert total.tolist() == [1.0] * 3


def test_outside_of_jit_pytorch_does_as_before():
    x = torch.ones(3, device="jax")

    def run(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 3, (x,))

    before = run(x.cpu())
    assert calque.jit(run)(x).tolist() == run(x).tolist() == run(x.cpu()).tolist()
    torch.testing.assert_close(before, x.cpu().sin())
    with torch.inference_mode():
        assert calque.jit(run)(x).tolist() == before.tolist()


def test_branches_that_give_other_shapes_are_refused():
    @calque.jit
    def run(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x[:2] * 1, (x,))

    with pytest.raises(calque.TraceError, match="different types"):
        run(torch.ones(3, device="jax"))


def test_a_scan_refuses_a_view_whose_gradient_it_would_misplace():
    @calque.jit
    def run(x, w):
        turned = w.t()
        return mapped(lambda row: row @ turned, x).sum()

    x, w = torch.rand(3, 3, device="jax"), torch.rand(3, 3, device="jax")
    torch.testing.assert_close(run(x, w), (x @ w.t()).sum())
    with pytest.raises(calque.TraceError, match="closes over a view"):
        run(x, w.requires_grad_())


def test_the_gradient_of_a_choice_is_that_of_the_python_state_at_its_call():
    def fn(x):
        k, y = 2.0, x
        for following in (3.0, 5.0, 7.0):
            y = torch.cond(y.sum() > 0, lambda t: t.sin() * k, lambda t: t.cos() * k, (y,))  # noqa: B023
            k = following
        return y

    def by_hand(x):
        y = x
        for k in (2.0, 3.0, 5.0):
            y = (y.sin() if y.sum() > 0 else y.cos()) * k
        return y

    def inside(x):
        (gradient,) = torch.autograd.grad(fn(x.requires_grad_()).sum(), x)
        return gradient

    expected = torch.tensor([0.5, 0.7], requires_grad=True)
    by_hand(expected).sum().backward()
    x = expected.detach().to("jax").requires_grad_()
    calque.jit(fn)(x).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), expected.grad)
    torch.testing.assert_close(calque.jit(inside)(x.detach()).cpu(), expected.grad)


def test_the_gradient_of_a_choice_reads_what_nested_choices_closed_over():
    def fn(x, cond):
        scale, shift = 2.0, x * 2

        def inner(t):
            return cond(t.sum() > 1, lambda u: u * scale * shift, lambda u: u - shift, (t,))

        y = cond(x.sum() > 0, inner, lambda t: t * 7, (x,))
        scale, shift = 5.0, x * 9
        return cond(x.sum() > 0, inner, lambda t: t * 7, (y,))

    def plain(predicate, true, false, operands):
        return (true if predicate else false)(*operands)

    expected = torch.tensor([1.0, 2.0], requires_grad=True)
    fn(expected, plain).sum().backward()
    x = expected.detach().to("jax").requires_grad_()
    calque.jit(fn)(x, torch.cond).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), expected.grad)
