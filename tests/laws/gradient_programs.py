"""Programs whose gradients leave a jitted function: each is written for any device.

A program gets `t`, which puts a list of numbers on its device, and `jit`; it returns what is to be
the same on every device, with `calque.jit` and without.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

PROGRAMS: dict[str, Callable[..., Any]] = {}


def program(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Add a program to the table."""
    PROGRAMS[fn.__name__] = fn
    return fn


def leaf(t: Any, *numbers: float) -> torch.Tensor:
    """A parameter of these numbers."""
    return t(*numbers).requires_grad_()


def facts(tensor: torch.Tensor) -> Any:
    """What autograd says of a tensor."""
    return tensor.requires_grad, tensor.is_leaf, tensor.grad_fn is not None


def raised(fn: Callable[[], Any]) -> Any:
    """The type of the error that a call raises; None if it raises none."""
    try:
        fn()
    except Exception as error:
        return type(error)
    return None


# Remaining state ----------------------------------------------------------------------------------


class Experts(nn.Module):
    """A mixture of experts, which leaves its auxiliary loss as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(2, 2, bias=False)
        nn.init.constant_(self.gate.weight, 0.5)
        self.aux = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p = self.gate(x)
        self.aux = (p**2).sum()
        return p.sum()


def experts(t: Any) -> Experts:
    module = Experts()
    module.gate.weight = nn.Parameter(t(0.5, 0.25, 1, 2).reshape(2, 2))
    return module


@program
def an_auxiliary_loss_in_an_attribute(t, jit):
    module = experts(t)
    run = jit(module.forward)
    seen = []
    for step in range(3):
        module.zero_grad()
        out = run(t(1, 2 + step))
        (out + 2 * module.aux).backward()
        seen += [out, module.aux, facts(module.aux), module.gate.weight.grad.clone()]
    return seen


@program
def an_auxiliary_loss_alone(t, jit):
    module = experts(t)
    run = jit(module.forward)
    for _ in range(2):
        run(t(1, 2))
        module.aux.backward()
    return module.gate.weight.grad


@program
def losses_in_a_dict(t, jit):
    w, losses = leaf(t, 1, 2), {}

    def f(x):
        losses["a"] = (w * x).sum()
        losses["b"] = (w * w).sum()

    run = jit(f)
    for _ in range(3):
        run(t(3, 4))
        (losses["a"] + losses["b"]).backward()
    return w.grad, facts(losses["a"])


@program
def losses_in_a_list(t, jit):
    w, losses = leaf(t, 1, 2), []

    def f(x):
        losses.append((w * x).sum())

    run = jit(f)
    for i in range(3):
        run(t(3, 4 + i))
    sum(losses).backward()
    return w.grad, [facts(x) for x in losses]


@program
def a_hidden_state_that_carries_its_history(t, jit):
    w = leaf(t, 2, 3)

    class Cell:
        h = t(1, 1)

    def f(x):
        Cell.h = torch.tanh(Cell.h * w + x)
        return Cell.h.sum()

    run = jit(f)
    for _ in range(4):
        loss = run(t(0.5, 0.25))
    loss.backward()
    return w.grad, Cell.h, facts(Cell.h)


@program
def a_gradient_with_a_graph(t, jit):
    w, x = leaf(t, 2, 3), leaf(t, 1, 4)

    def f():
        (w * x**3).sum().backward(create_graph=True)

    jit(f)()
    found = [w.grad.clone(), x.grad.clone(), facts(x.grad)]
    (second,) = torch.autograd.grad(x.grad.sum(), x)
    return found, second


# Results ------------------------------------------------------------------------------------------


@program
def views_of_a_parameter(t, jit):
    w = leaf(t, 1, 2, 3, 4)
    run = jit(lambda: (w[:2], w.view(2, 2).t(), w[None].expand(3, 4), w[1]))
    seen = []
    for _ in range(2):
        w.grad = None
        head, square, wide, one = run()
        (head.sum() + (square * t(1, 2, 3, 4).view(2, 2)).sum() + wide.sum() + one * 7).backward()
        seen += [facts(v) for v in (head, square, wide, one)] + [w.grad]
    return seen


@program
def views_of_an_argument(t, jit):
    x, w = leaf(t, 1, 2, 3, 4), leaf(t, 5, 6)
    run = jit(lambda x: (x[:2], x.reshape(2, 2)[1], x.detach()[1:]))
    for _ in range(2):
        head, tail, detached = run(x * 2)
        (head * w).sum().backward()
        tail, *_ = run(x)
        tail.sum().backward()
    return x.grad, w.grad, facts(head), facts(tail), facts(detached)


@program
def a_view_made_without_gradients(t, jit):
    w = leaf(t, 1, 2)

    def f():
        with torch.no_grad():
            a = w[:1]
        return a, w.detach(), w.data[1:], w

    return [facts(x) for x in jit(f)()]


@program
def unused_results_leave_no_gradient(t, jit):
    a, b, c = leaf(t, 1, 2), leaf(t, 3, 4), leaf(t, 5, 6)
    run = jit(lambda: (a * 2, b * a, c.exp()))
    seen = []
    for index in range(3):
        a.grad = b.grad = c.grad = None
        run()[index].sum().backward()
        seen.append([a.grad, b.grad, c.grad])
    return seen


@program
def an_unused_result_with_an_infinite_slope(t, jit):
    w = leaf(t, 0, 4)
    y, _ = jit(lambda: (w * 3, w.sqrt()))()
    y.sum().backward()
    return w.grad


@program
def a_hook_on_a_parameter_that_gets_no_gradient(t, jit):
    a, b = leaf(t, 1, 2), leaf(t, 3, 4)
    b.register_hook(lambda g: g * 2)
    y, z = jit(lambda: (a * 2, b * a))()
    y.sum().backward()
    seen = [a.grad.clone(), b.grad]
    z.sum().backward()
    return seen, a.grad, b.grad


@program
def allow_unused(t, jit):
    a, b = leaf(t, 1, 2), leaf(t, 3, 4)
    y = jit(lambda: (a * 2).sum() + 0 * b.detach().sum())()
    return torch.autograd.grad(y, [a, b], allow_unused=True)


@program
def allow_unused_inside(t, jit):
    a, b = leaf(t, 1, 2), leaf(t, 3, 4)
    return jit(lambda: torch.autograd.grad((a * 2).sum(), [a, b], allow_unused=True))()


@program
def what_autograd_says_of_results(t, jit):
    w = leaf(t, 1, 2)

    def f(x):
        fresh = torch.zeros_like(x).requires_grad_()
        y = (w * x).exp()
        return w, x, y, y.detach(), y[0], y > 1, y.argmax(), fresh, fresh * 2, nn.Parameter(x * 2)

    run = jit(f)
    return [[*map(facts, run(x))] for x in (t(1, 2), leaf(t, 1, 2), leaf(t, 1, 2) * 1)]


@program
def a_leaf_made_inside(t, jit):
    def f(x):
        fresh = (x * 2).requires_grad_()
        return fresh, fresh * 3, nn.Parameter(x)

    fresh, out, parameter = jit(f)(t(1, 2))
    out.sum().backward()
    return fresh, fresh.grad, type(fresh) is torch.Tensor, type(parameter) is nn.Parameter


@program
def a_loss_whose_graph_is_spent(t, jit):
    w = leaf(t, 1, 2)

    def f():
        loss = (w * w).sum()
        loss.backward()
        return loss

    run = jit(f)
    seen = []
    for _ in range(3):
        loss = run()
        seen += [facts(loss), raised(lambda: loss.backward()), w.grad.clone()]  # noqa: B023
    return seen


@program
def one_result_is_spent_and_one_is_not(t, jit):
    w = leaf(t, 1, 2)

    def f():
        loss = (w * w).sum()
        loss.backward()
        return loss, w * 3

    loss, out = jit(f)()
    out.sum().backward()
    return w.grad, raised(lambda: loss.backward())


@program
def a_result_that_was_used_with_retain_graph(t, jit):
    w = leaf(t, 1, 2)

    def f():
        loss = (w * w).sum()
        loss.backward(retain_graph=True)
        return loss

    loss = jit(f)()
    loss.backward()
    return w.grad


@program
def backward_twice(t, jit):
    w = leaf(t, 1, 2)
    kept = jit(lambda: (w * w).sum())()
    kept.backward(retain_graph=True)
    kept.backward()
    return w.grad


@program
def backward_twice_is_an_error(t, jit):
    w = leaf(t, 1, 2)
    y = jit(lambda: (w * w).sum())()
    y.backward()
    linear = jit(lambda: (w * 2).sum())()
    linear.backward()
    return raised(lambda: y.backward()), raised(lambda: linear.backward()), w.grad


@program
def aliases_among_results(t, jit):
    w = leaf(t, 1, 2, 3)

    def f():
        y = w * 2
        return y, y.detach(), y[1:], y.view(3, 1)

    y, detached, tail, column = jit(f)()
    y.mul_(3)
    seen = [y, detached, tail, column]
    (tail.sum() + column.sum()).backward()
    return seen, w.grad


@program
def a_result_changed_in_place(t, jit):
    w = leaf(t, 1, 2)
    run = jit(lambda: (w * 2, w.exp()))
    y, e = run()
    y.add_(1).mul_(y.detach().clone())
    y.sum().backward(retain_graph=True)
    e.add_(1)
    return w.grad, raised(lambda: e.sum().backward())


@program
def views_of_one_result_changed_in_place(t, jit):
    w = leaf(t, 1, 2, 3)

    def f():
        y = w * 2
        return y[:2], y[1:]

    head, tail = jit(f)()
    head.mul_(5)
    tail.sum().backward()
    return head, tail, w.grad


# Inputs -------------------------------------------------------------------------------------------


@program
def an_argument_written_in_place(t, jit):
    w = leaf(t, 2, 3)
    run = jit(lambda x: x.mul_(w))
    seen = []
    for _ in range(3):
        w.grad = None
        x = t(5, 7)
        out = run(x)
        seen += [out is x, facts(x), x.detach().clone()]
        x.sum().backward()
        seen.append(w.grad)
    return seen


@program
def a_computed_argument_written_in_place(t, jit):
    v, w = leaf(t, 1, 1), leaf(t, 2, 3)
    run = jit(lambda x: x.mul_(w).sum() * 0)
    for _ in range(2):
        x = v * 5
        run(x)
        run(x)
        x.sum().backward()
    return v.grad, w.grad, x


@program
def a_view_written_in_place(t, jit):
    w = leaf(t, 2, 3)
    run = jit(lambda x: x.mul_(w))
    for _ in range(2):
        base = t(1, 2, 3, 4)
        run(base[1:3])
        (base * t(1, 10, 100, 1000)).sum().backward()
    return w.grad, base, facts(base)


@program
def a_part_of_an_argument_written_in_place(t, jit):
    v, w = leaf(t, 1, 1, 1), leaf(t, 2, 3)

    def f(x):
        x[1:] = w

    run = jit(f)
    for _ in range(2):
        x = v * 2
        run(x)
        (x * t(1, 10, 100)).sum().backward()
    return v.grad, w.grad, x, facts(x)


@program
def a_buffer_written_in_place(t, jit):
    w, buffer = leaf(t, 2, 3), t(1, 1)

    def f(x):
        buffer.copy_(w * x)

    run = jit(f)
    for _ in range(3):
        run(t(3, 4))
        buffer.sum().backward()
        buffer.detach_()
    return w.grad, buffer, facts(buffer)


@program
def arguments_computed_outside(t, jit):
    v, w = leaf(t, 1, 2), leaf(t, 3, 4)
    run = jit(lambda x: (w * x).sum())
    for _ in range(2):
        run(v.exp()).backward()
    return v.grad, w.grad


@program
def backward_inside_reaches_arguments(t, jit):
    v = leaf(t, 1, 2)

    def f(x):
        (x * x).sum().backward()

    run = jit(f)
    for _ in range(2):
        run(v * 3)
    return v.grad


@program
def a_state_computed_outside(t, jit):
    v, w = leaf(t, 1, 2), leaf(t, 3, 4)
    h = v.exp()
    run = jit(lambda x: (h * w * x + v).sum())
    (run(t(1, 2)) + run(t(3, 4))).backward()
    return v.grad, w.grad


@program
def a_state_computed_outside_and_its_source(t, jit):
    v = leaf(t, 1, 2)
    h = v * v
    y = jit(lambda: (h * v).sum())()
    y.backward()
    return v.grad


@program
def hooks_fire_once(t, jit):
    w, seen = leaf(t, 1, 2), []
    w.register_hook(lambda g: g * 10)
    y = jit(lambda: (w * 3).sum())()
    y.register_hook(lambda g: seen.append(g) or g * 2)
    y.backward()
    return w.grad, seen


@program
def hooks_after_accumulation(t, jit):
    w, seen = leaf(t, 1, 2), []
    w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    run = jit(lambda x: (w * x).sum())
    run(t(1, 2)).backward()
    run(t(3, 2)).backward()
    return seen


@program
def hooks_on_computed_arguments(t, jit):
    v, seen = leaf(t, 1, 2), []
    h = v * 2
    h.register_hook(lambda g: seen.append(g))
    h.retain_grad()
    jit(lambda x: (x * 3).sum())(h).backward()
    return v.grad, h.grad, seen


@program
def a_hook_registered_inside(t, jit):
    w = leaf(t, 1, 2)

    def f():
        y = w * 3
        y.register_hook(lambda g: g * 5)
        return y.sum(), y

    run = jit(f)
    total, y = run()
    total.backward(retain_graph=True)
    y.sum().backward()
    return w.grad


@program
def retain_grad_inside(t, jit):
    w = leaf(t, 1, 2)

    def f():
        y = w * 3
        y.retain_grad()
        return y, (y * y).sum()

    y, total = jit(f)()
    total.backward()
    return y.grad, y.retains_grad, w.grad


@program
def a_parameter_written_between_forward_and_backward(t, jit):
    v, w, b = leaf(t, 1, 2), leaf(t, 3, 4), leaf(t, 5, 6)
    y = jit(lambda: (v * w + b).sum())()
    with torch.no_grad():
        b.add_(1)
    y.backward(retain_graph=True)
    with torch.no_grad():
        w.add_(1)
    return raised(lambda: y.backward()), v.grad


@program
def an_argument_written_between_forward_and_backward(t, jit):
    w, x = leaf(t, 3, 4), t(1, 2)
    y = jit(lambda x: (x * w).sum())(x)
    x.add_(1)
    return raised(lambda: y.backward())


@program
def frozen_between_calls(t, jit):
    v, w = leaf(t, 1, 2), leaf(t, 3, 4)
    run = jit(lambda: (v * w).sum())
    run().backward()
    w.requires_grad_(False)
    run().backward()
    return v.grad, w.grad


# Second derivatives -------------------------------------------------------------------------------


@program
def a_second_derivative_through_a_result(t, jit):
    x = leaf(t, 1, 2)
    run = jit(lambda x: (x**4).sum())
    (first,) = torch.autograd.grad(run(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    (third,) = torch.autograd.grad(second.sum(), x)
    return first, second, third, facts(first), facts(third)


@program
def a_gradient_penalty(t, jit):
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    for i, layer in enumerate((net[0], net[2])):
        for name, p in list(layer.named_parameters()):
            numbers = [(i + 1) * 0.1 * (k - 2) for k in range(p.numel())]
            setattr(layer, name, nn.Parameter(t(*numbers).view(p.shape)))
    run = jit(net)
    seen = []
    for step in range(3):
        net.zero_grad()
        x = t(1, 2, 3, 4 + step).view(2, 2).requires_grad_()
        score = run(x)
        (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
        (score.mean() + 10 * penalty).backward()
        seen += [penalty, *(p.grad.clone() for p in net.parameters() if p.grad is not None)]
    return seen


@program
def a_gradient_penalty_of_a_constant_branch(t, jit):
    w, x = leaf(t, 2, 3), leaf(t, 1, 2)
    y = jit(lambda x: (w * w.detach() * x * x).sum())(x)
    first = torch.autograd.grad(y, [w, x], create_graph=True)
    second = torch.autograd.grad(first[0].sum(), [w, x], allow_unused=True, retain_graph=True)
    third = torch.autograd.grad(first[1].sum(), [w, x], allow_unused=True)
    return first, second, third


class Cube(torch.autograd.Function):
    """A cube whose derivative is its own, and another one's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * 7 * x**2


@program
def a_second_derivative_of_a_custom_function(t, jit):
    x = leaf(t, 1, 2)
    (first,) = torch.autograd.grad(jit(Cube.apply)(x).sum(), x, create_graph=True)
    first.sum().backward()
    return first, x.grad


@program
def a_hessian_vector_product(t, jit):
    w, x = leaf(t, 1, 2), t(3, 4)
    run = jit(lambda: ((w * x).sin() ** 2).sum())
    (g,) = torch.autograd.grad(run(), w, create_graph=True)
    (g * t(1, -1)).sum().backward()
    return w.grad


@program
def a_hessian_through_torch_autograd_functional(t, jit):
    run = jit(lambda x: (x**3).sum() * x[0])
    return torch.autograd.functional.hessian(run, t(1, 2, 3))


@program
def a_second_derivative_with_a_counter(t, jit):
    w = leaf(t, 1, 2)

    class State:
        calls = 0
        last = None

    def f(x):
        State.calls += 1
        State.last = (w * x).sum()
        return (w**3 * x).sum() * State.calls

    run = jit(f)
    seen = []
    for _ in range(3):
        (g,) = torch.autograd.grad(run(t(1, 2)), w, create_graph=True)
        seen += [g, *torch.autograd.grad(g.sum(), w)]
    return seen


@program
def a_second_derivative_in_training_mode(t, jit):
    norm = nn.BatchNorm1d(2, affine=False)
    norm.running_mean, norm.running_var = t(0, 0), t(1, 1)
    norm.num_batches_tracked = None
    w = leaf(t, 1, 2)
    run = jit(lambda x: norm(w * x).pow(3).sum())
    seen = []
    for step in range(2):
        (g,) = torch.autograd.grad(run(t(1, 2, 3, 5 + step, 6, 9).view(3, 2)), w, create_graph=True)
        seen += [g, *torch.autograd.grad(g.sum(), w), norm.running_mean.clone()]
    return seen


# Other modes --------------------------------------------------------------------------------------


@program
def no_grad_and_inference_mode(t, jit):
    w = leaf(t, 1, 2)
    run = jit(lambda: w * 2)
    seen = []
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            y = run()
            seen += [facts(y), y.is_inference()]
    return seen


@program
def gradients_switched_on_inside(t, jit):
    w = leaf(t, 1, 2)

    def f():
        with torch.enable_grad():
            return w * 2

    run = jit(f)
    for on in (True, False, False):
        with torch.set_grad_enabled(on):
            y = run()
        y.sum().backward()
    return w.grad


@program
def forward_derivatives(t, jit):
    run = jit(lambda x: x**3)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(t(1, 2), t(3, 4))
        return torch.autograd.forward_ad.unpack_dual(run(dual)).tangent


@program
def batched_gradients(t, jit):
    x = leaf(t, 1, 2)
    y = jit(lambda x: x**3)(x)
    return torch.autograd.grad(y, x, t(1, 0, 0, 1).view(2, 2), is_grads_batched=True)


@program
def complex_parameters(t, jit):
    w = torch.complex(t(1, 2), t(3, 4)).requires_grad_()
    y = jit(lambda: (w * w).conj())()
    y.abs().sum().backward()
    return w.grad, facts(y)


@program
def checkpointed(t, jit):
    w = leaf(t, 1, 2)
    run = jit(lambda x: (x * w).exp())
    y = torch.utils.checkpoint.checkpoint(run, t(0.1, 0.2), use_reentrant=False)
    y.sum().backward()
    return w.grad


@program
def hooks_for_saved_tensors(t, jit):
    w = leaf(t, 1, 2)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x * 2):
        y = jit(lambda: w.exp())()
    y.sum().backward()
    return w.grad


@program
def a_custom_function_around_a_jitted_one(t, jit):
    run = jit(lambda x: x**2)

    class Wrapped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                ctx.x = x.detach().requires_grad_()
                ctx.y = run(ctx.x)
            return ctx.y.detach()

        @staticmethod
        def backward(ctx, g):
            return torch.autograd.grad(ctx.y, ctx.x, g)[0] * 2

    x = leaf(t, 1, 2)
    Wrapped.apply(x).sum().backward()
    return x.grad


@program
def training_with_an_auxiliary_loss(t, jit):
    module = experts(t)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    run = jit(module.forward)
    for step in range(4):
        optimizer.zero_grad()
        loss = F.softplus(run(t(0.1, 0.2 * step))) + module.aux
        loss.backward()
        optimizer.step()
    return module.gate.weight.detach(), loss
