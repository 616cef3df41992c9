"""Gradients in, out of and through jitted functions agree with eager PyTorch."""

import contextlib
import copy
import warnings
from collections.abc import MutableMapping

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import calque


def ones(*shape):
    return torch.ones(*shape, device="jax")


def pair():
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
    return reference, copy.deepcopy(reference).to("jax")


def check_gradients(model, reference):
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        if q.grad is None:
            assert p.grad is None, name
        else:
            torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_a_jitted_model_under_an_eager_loss(training):
    reference, model = pair()
    reference.train(training)
    model.train(training)
    run = calque.jit(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (reference, model)]
    for _ in range(3):
        x = torch.randn(6, 3)
        a, b = x.clone().requires_grad_(), x.to("jax").requires_grad_()
        F.mse_loss(reference(a), torch.ones(6, 2)).backward()
        F.mse_loss(run(b), ones(6, 2)).backward()
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-4, atol=1e-5)
        check_gradients(model, reference)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(model[1].running_mean.cpu(), reference[1].running_mean)
    assert len(run.history) == 1


def test_inputs_that_were_computed_outside():
    w = ones(3).requires_grad_()
    run = calque.jit(lambda x: (x * x).sum())
    for _ in range(2):
        w.grad = None
        run(w * 3).backward()
        assert w.grad.tolist() == [18, 18, 18]


def test_backward_twice_through_one_call():
    w = ones(2).requires_grad_()
    out = calque.jit(lambda x: (w * x) ** 2)(ones(2))
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    assert w.grad.tolist() == [4, 4]


def test_two_calls_before_one_backward():
    w = ones(2).requires_grad_()
    run = calque.jit(lambda x: (w * x) ** 2)
    (run(ones(2)) + run(ones(2) * 2)).sum().backward()
    assert w.grad.tolist() == [10, 10]


def test_a_state_overwritten_between_forward_and_backward_is_an_error_as_eagerly():
    w = ones(2).requires_grad_()
    scale = ones(2) * 3
    out = calque.jit(lambda: w * scale)()
    scale.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_frozen_parameters_get_no_gradient():
    reference, model = pair()
    for m in (reference, model):
        m[0].weight.requires_grad_(False)
    x = torch.randn(4, 3)
    reference(x).sum().backward()
    calque.jit(model)(x.to("jax")).sum().backward()
    check_gradients(model, reference)


def test_results_of_which_some_carry_no_gradient():
    w = ones(3).requires_grad_()
    run = calque.jit(lambda x: {"y": w * x, "arg": (w * x).argmax(), "d": (w * x).detach(), "n": 3})
    for _ in range(2):
        out = run(ones(3))
        assert out["y"].requires_grad
        assert not out["arg"].requires_grad
        assert not out["d"].requires_grad
        out["y"].sum().backward()
    assert w.grad.tolist() == [2, 2, 2]


def test_unused_results_and_views_of_one_result():
    w = ones(4).requires_grad_()

    @calque.jit
    def run():
        y = w * 2
        return y, y[:2], w * 3

    y, head, other = run()
    head.sum().backward(retain_graph=True)
    assert w.grad.tolist() == [2, 2, 0, 0]
    other.sum().backward()
    assert w.grad.tolist() == [5, 5, 3, 3]
    assert y.requires_grad


def test_no_grad_calls():
    _, model = pair()
    run = calque.jit(model)
    with torch.no_grad():
        assert not run(ones(2, 3)).requires_grad
    assert run(ones(2, 3)).requires_grad


def test_gradients_made_outside_are_read_by_a_jitted_optimizer_step():
    p = ones(2).requires_grad_()
    optimizer = torch.optim.SGD([p], lr=1.0)
    step = calque.jit(optimizer.step)
    for expected in (0, -2, -5):
        p.grad = None
        (p * (1 - expected if expected else 1)).sum().backward()
        optimizer_input = p.grad.clone()
        before = p.detach().clone()
        step()
        assert torch.equal(p, before - optimizer_input)
    assert len(step.history) == 1


def test_gradients_of_arguments_inside():
    @calque.jit
    def run(x):
        (x * x).sum().backward()

    x = ones(2).requires_grad_()
    run(x)
    assert x.grad.tolist() == [2, 2]
    run(x)
    assert x.grad.tolist() == [4, 4]
    y = (ones(2) * 3).requires_grad_()
    run(y)
    assert y.grad.tolist() == [6, 6]
    base = ones(4)
    view = base[1:3].requires_grad_()
    for i in (1, 2):
        run(view)
        assert view.grad.tolist() == [2 * i] * 2


def test_a_leaf_found_only_by_calling():
    class Box:
        __slots__ = ("w",)

    box = Box()
    box.w = ones(2).requires_grad_()
    run = calque.jit(lambda x: (box.w * x).sum().backward())
    for i in (1, 2, 3):
        run(ones(2))
        assert box.w.grad.tolist() == [i, i]


def test_autograd_grad_and_second_derivatives_inside():
    @calque.jit
    def run(x):
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        return first.detach(), second

    first, second = run(ones(2) * 2)
    assert first.tolist() == [12, 12]
    assert second.tolist() == [12, 12]


def test_hooks_inside_a_jitted_step():
    w = ones(2).requires_grad_()
    layer = nn.Linear(2, 1, bias=False).to("jax")
    layer.register_forward_hook(lambda m, a, out: out * 2)
    layer.weight.register_hook(lambda g: g * 10)
    kept = []
    handle = w.register_post_accumulate_grad_hook(lambda p: kept.append(1))

    @calque.jit
    def step(x):
        y = w * x
        y.register_hook(lambda g: g * 5)
        layer(y).sum().backward()
        return layer.weight.grad.clone()

    assert step(ones(2)).tolist() == [[20, 20]]
    want = (layer.weight.detach()[0] * 2 * 5).tolist()
    assert w.grad.tolist() == want
    assert kept
    handle.remove()


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_leaves_run_in_pytorchs_order_in_a_backward_pass_outside(register):
    def orders(device, jit):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).to(device)
        last = torch.ones(2, device=device, requires_grad=True)
        order = []
        for name, leaf in (*model.named_parameters(), ("last", last)):
            getattr(leaf, register)(lambda _, name=name: order.append(name))
        run = jit(lambda x: (model(x) * last).sum() + model[0].bias.sum())
        x = torch.ones(4, 2, device=device)
        run(x).backward()
        (run(x) * 2 + last.sum() + model[2].bias.sum()).backward()
        known = list(order)
        first = torch.autograd.grad(run(x), list(model.parameters()), create_graph=True)
        sum(g.square().sum() for g in first).backward()
        return known, [p.grad.cpu() for p in model.parameters()]

    order, gradients = orders("cpu", lambda fn: fn)
    found, others = orders("jax", calque.jit)
    assert found == order
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_that_depend_on_nothing_have_no_graph():
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).to("jax")
    whole = calque.jit(lambda x: model(x).sum())
    found = torch.autograd.grad(
        whole(torch.ones(4, 2, device="jax")), [*model.parameters()], create_graph=True
    )
    assert [one.requires_grad for one in found] == [True, True, True, False]
    sum(one.square().sum() for one in found).backward()
    assert model[2].bias.grad is None
    layer = nn.Linear(3, 2).to("jax")
    run = calque.jit(lambda x: layer(x).tanh())
    plain = calque.jit(lambda x: layer(x))
    x = torch.ones(4, 3, device="jax")
    for _ in range(2):
        for fn, has_graph in ((run, True), (plain, False)):
            found = torch.autograd.grad(fn(x).sum(), layer.weight, create_graph=True)[0]
            assert found.requires_grad is has_graph
            found = torch.autograd.grad(fn(x).sum(), [*layer.parameters()], create_graph=True)
            assert [one.requires_grad for one in found] == [has_graph, has_graph]
            incoming = torch.ones(4, 2, device="jax", requires_grad=True)
            first = torch.autograd.grad(fn(x), layer.weight, incoming, create_graph=True)[0]
            (second,) = torch.autograd.grad(first.sum(), incoming)
            assert second.shape == (4, 2)


PASSED_ON = {
    "a sum": lambda x, w, u: x + w,
    "sums that share terms": lambda x, w, u: (w + u, u - w, w * 2),
    "a view": lambda x, w, u: (w.view(-1), w.t()),
    "a sum beside others": lambda x, w, u: (torch.tanh(u) + x, w + u),
}


@pytest.mark.parametrize("name", PASSED_ON)
def test_a_gradient_that_is_passed_on_unchanged_has_a_graph(name):
    """The loss outside is not linear, so the gradient depends on the result, and thus on `w`."""
    found = []
    for device, jit in (("cpu", lambda fn: fn), ("jax", calque.jit)):
        w, u, x = (torch.linspace(k, 2, 6, device=device).view(2, 3) for k in (-1, 0, 1))
        w, u = nn.Parameter(w), nn.Parameter(u)
        run = jit(lambda x, w=w, u=u: PASSED_ON[name](x, w, u))
        for _ in range(2):
            results = run(x)
            results = results if isinstance(results, tuple) else (results,)
            loss = sum(one.pow(3).sum() for one in results)
            first = torch.autograd.grad(loss, w, create_graph=True)[0]
            second = torch.autograd.grad(first.square().sum(), w, create_graph=True)[0]
            second.sum().backward()
        found.append([first.requires_grad, first.cpu(), second.cpu(), w.grad.cpu()])
    torch.testing.assert_close(found[1], found[0])


class _Free(torch.autograd.Function):
    saves = False

    @classmethod
    def forward(cls, ctx, x):
        if cls.saves:
            ctx.save_for_backward(x)
        return x.clone()

    @classmethod
    def backward(cls, ctx, gradient):
        return gradient * 2 if not cls.saves else gradient * ctx.saved_tensors[0]


class _Saving(_Free):
    saves = True


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: x + w,
        lambda x, w: w.t(),
        lambda x, w: w * 2,
        lambda x, w: w.exp(),
        lambda x, w: (x + w) * 3 - w,
        lambda x, w: _Free.apply(w),
        lambda x, w: _Saving.apply(w),
    ],
)
def test_a_second_backward_pass_raises_where_pytorch_has_freed_something(fn):
    found = []
    for device, jit in (("cpu", lambda fn: fn), ("jax", calque.jit)):
        x, w = (torch.ones(2, 3, device=device) for _ in range(2))
        w.requires_grad_()
        run = jit(lambda x, w=w: fn(x, w))
        for _ in range(2):
            loss = run(x).sum()
            loss.backward()
            with contextlib.suppress(RuntimeError):
                loss.backward()
        found.append(w.grad.cpu())
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_what_a_result_does_not_depend_on_do_not_run(register):
    w, v, u = (torch.ones(2, device="jax", requires_grad=True) for _ in range(3))
    seen = []
    for name, leaf in (("w", w), ("v", v)):
        getattr(leaf, register)(lambda given, name=name: seen.append((name, given is None)))

    @calque.jit
    def run(x, y):
        shared = x * w
        return shared.sum(), (shared * v).sum(), (shared * y).sum()

    def called(index):
        y = u * 2
        y.register_hook(lambda given: seen.append(("y", given is None)))
        run(torch.ones(2, device="jax"), y)[index].backward()
        found = set(seen)
        seen.clear()
        return found

    for _ in range(2):
        assert called(0) == {("w", False)}
        assert called(1) == {("w", False), ("v", False)}
        assert called(2) == {("w", False), ("y", False)}
    assert (w.grad.tolist(), v.grad.tolist(), u.grad.tolist()) == ([8, 8], [2, 2], [4, 4])


def test_an_optimizer_in_a_post_accumulate_hook():
    def train(device, wrap):
        torch.manual_seed(0)
        model = nn.Linear(2, 2).to(device)
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

        def update(p):
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)
        step = wrap(lambda x: model(x).pow(2).sum().backward())
        for _ in range(3):
            step(torch.ones(1, 2, device=device))
        return [p.detach().cpu() for p in model.parameters()]

    for got, want in zip(train("jax", calque.jit), train("cpu", lambda f: f), strict=True):
        torch.testing.assert_close(got, want)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x * 7


def test_custom_functions():
    w = ones(2).requires_grad_()
    run = calque.jit(lambda: Square.apply(w))
    run().sum().backward()
    assert w.grad.tolist() == [7, 7]
    calque.jit(lambda: Square.apply(w).sum().backward())()
    assert w.grad.tolist() == [14, 14]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_with_dropout(reentrant):
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to("jax")

    @calque.jit
    def step(x):
        y = checkpoint(block, x, use_reentrant=reentrant)
        y.sum().backward()
        return y.detach(), x.grad

    x = ones(8, 4).requires_grad_()
    y, _ = step(x)
    # The gradient of the bias counts the kept elements, so the recomputation used the same mask.
    kept = (y != 0).float().sum(0) * 2
    torch.testing.assert_close(block[0].bias.grad, kept)


def test_functional_transforms_inside():
    w = ones(3)
    run = calque.jit(lambda x: torch.func.vmap(torch.func.grad(lambda v: (v * v * w).sum()))(x))
    assert run(ones(2, 3)).tolist() == [[2, 2, 2]] * 2


def test_a_jitted_function_inside_functional_transforms():
    run = calque.jit(lambda x: (x * x).sum())
    assert torch.func.grad(run)(ones(2)).tolist() == [2, 2]
    assert torch.func.vmap(run)(ones(2, 3)).tolist() == [3, 3]


def test_gradient_accumulation_scaling_and_clipping():
    def train(device, wrap):
        torch.manual_seed(0)
        model = nn.Linear(3, 1).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

        def micro(x):
            (model(x).pow(2).mean() / 2).backward()

        def update():
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            return norm

        micro, update = wrap(micro), wrap(update)
        for _ in range(3):
            for _ in range(2):
                micro(torch.ones(2, 3, device=device))
            update()
        return [p.detach().cpu() for p in model.parameters()], micro, update

    want, *_ = train("cpu", lambda f: f)
    got, micro, update = train("jax", calque.jit)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert len(micro.history) == 2
    assert len(update.history) == 1


def test_zero_grad_that_keeps_the_gradients():
    w = ones(2).requires_grad_()
    optimizer = torch.optim.SGD([w], lr=1.0)

    @calque.jit
    def step(x):
        optimizer.zero_grad(set_to_none=False)
        (w * x).sum().backward()
        optimizer.step()

    for i in range(4):
        step(ones(2))
        assert w.tolist() == [-i, -i]
        assert w.grad.tolist() == [1, 1]
    assert len(step.history) == 2


def test_requires_grad_switched_inside():
    a, b = ones(2).requires_grad_(), ones(2).requires_grad_()

    @calque.jit
    def step():
        b.requires_grad_(False)
        (a * b).sum().backward()
        b.requires_grad_(True)

    step()
    assert b.requires_grad
    assert b.grad is None
    assert a.grad.tolist() == [1, 1]


def test_data_assigned_inside():
    p = ones(2).requires_grad_()

    @calque.jit
    def step():
        p.data = p.data * 2

    for i in range(3):
        step()
        assert p.tolist() == [2 ** (i + 1)] * 2
    assert len(step.history) == 1


def _old_memory_returned(p, kept):
    old = p.data
    p.data = p.data * 2
    return old


def _old_memory_kept(p, kept):
    kept["backup"] = p.data
    p.data = p.data * 2


@pytest.mark.parametrize("fn", [_old_memory_returned, _old_memory_kept])
def test_data_assigned_inside_while_the_old_is_used_is_refused(fn):
    """A call writes the new values into the old memory, where the other tensor would see them."""
    p, kept = ones(2).requires_grad_(), {}
    with pytest.raises(calque.TraceError, match=r"(?s)\.data = .*copy_"):
        calque.jit(lambda: fn(p, kept))()
    assert p.tolist() == [1, 1] and not kept


def test_parameters_over_one_vector():
    """`vector_to_parameters` gives them the vector's memory."""
    layer = nn.Linear(2, 1).to("jax")

    @calque.jit
    def assign(vector):
        nn.utils.vector_to_parameters(vector, layer.parameters())

    for i in range(3):
        assign(torch.arange(3.0).to("jax") + i)
        assert layer.weight.tolist() == [[i, i + 1]] and layer.bias.tolist() == [i + 2]


def test_a_loss_whose_graph_is_used_up_in_part_can_be_returned():
    w = torch.ones(3, device="jax", requires_grad=True)

    @calque.jit
    def step(x):
        a = w * x
        loss = (a.exp() + a).sum() - 0.5 * (1 + a - a**2).sum()
        loss.backward()
        return loss

    x = torch.ones(3, device="jax")
    first = step(x)
    assert step(x).item() == first.item()
    assert len(step.history) <= 2, step.history


def test_an_argument_that_gets_a_graph_is_not_asked_for_its_gradient():
    w = torch.ones(2, device="jax", requires_grad=True)

    @calque.jit
    def step(x):
        x.mul_(w)
        return x.sum()

    for _ in range(3):
        x = torch.full((2,), 2.0, device="jax")
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # PyTorch warns of `.grad` of a non-leaf
            (step(x) + x.sum()).backward()
        assert w.grad.tolist() == [4.0, 4.0]
        w.grad = None


class Rates(MutableMapping):
    """A dict of a class attribute, as registries of functions in packages are."""

    items_of_all = {"rate": 2.0}

    def __getitem__(self, key):
        return self.items_of_all[key]

    def __setitem__(self, key, value):
        self.items_of_all[key] = value

    def __delitem__(self, key):
        del self.items_of_all[key]

    def __iter__(self):
        return iter(self.items_of_all)

    def __len__(self):
        return len(self.items_of_all)


def test_a_backward_pass_may_ask_for_an_abstract_class():
    class Other:
        pass

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * (3 if isinstance(Other(), Rates) else 2)

    w, rates = torch.ones(2, device="jax", requires_grad=True), Rates()

    @calque.jit
    def run(x):
        return (Scaled.apply(w * x) * len(vars(type(rates))) ** 0 * rates["rate"]).sum()

    def gradient():
        w.grad = None
        run(ones(2)).backward()
        return w.grad.tolist()

    assert [gradient() for _ in range(3)] == [[4, 4]] * 3
    assert run.history == ["first call"]
    Rates.register(Other)
    assert gradient() == [6, 6]


def detached(state):
    state.square.detach_()


def transposed(state):
    state.grid.t_()


def other_values(state):
    state.square.data = torch.full((3, 3), 5.0, device="jax")


def transposed_values(state):
    state.grid.data = state.grid.data.t()


def scaled_by_a_number(state):
    state.square.mul_(3)


def scaled_by_the_weight(state):
    state.square.mul_(state.weight)


class Computed:
    """Tensors with autograd graphs, and a function of them."""

    def __init__(self):
        self.weight = torch.ones(3, 3, device="jax", requires_grad=True)
        self.square = self.weight * 2
        self.grid = self.weight * torch.arange(9.0, device="jax").view(3, 3)

    def total(self):
        found = self.square[0].sum() + self.grid[0, 1] * 1000 + self.grid.stride(0) * 5
        return found.detach() + self.square.requires_grad * 20.0 + self.square.is_leaf * 100

    def gradient(self):
        loss = (self.square * self.square).sum() + self.grid.sum()
        return torch.autograd.grad(loss, self.weight, retain_graph=True)[0].sum()


@pytest.mark.parametrize("asked", [Computed.total, Computed.gradient])
@pytest.mark.parametrize(
    "change",
    [
        *(detached, transposed, other_values, transposed_values),
        *(scaled_by_a_number, scaled_by_the_weight),
    ],
)
def test_a_change_of_state_that_has_a_graph_is_seen(change, asked):
    state = Computed()
    step = calque.jit(lambda: asked(state))
    for _ in range(4):
        assert step().item() == asked(state).item()
    change(state)
    for _ in range(3):
        assert step().item() == asked(state).item()


def test_values_written_to_state_that_has_a_graph_need_no_trace():
    state = Computed()
    step = calque.jit(state.total)
    step()
    for _ in range(3):
        with torch.no_grad():
            state.square.add_(1)
        assert step().item() == state.total().item()
    assert ": 1 traces" in str(step.explain())
