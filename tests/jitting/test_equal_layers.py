"""Layers that are equal are traced each, and lowered once; the others stay what they are."""

import copy
import functools
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import calque
from calque.program import repetitions as programs

DEPTH, WIDTH = 4, 6


class Layer(nn.Module):
    """A layer with all that one may change of it."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)
        self.dropout = nn.Dropout(0.5)
        self.scale, self.seen = 1.0, []
        self.register_buffer("offset", torch.zeros(WIDTH))

    def forward(self, x):
        hidden = self.dropout(F.gelu(self.up(self.norm(x))))
        return x + self.scale * self.down(hidden) + self.offset


class Normalized(nn.Module):
    """A layer that writes buffers."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.norm(self.linear(x)))


class Model(nn.Module):
    """A stack of layers."""

    def __init__(self, kind=Layer):
        super().__init__()
        self.layers = nn.ModuleList(kind() for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def _same(model):
    pass


def _attribute(model):
    model.layers[2].scale = 0.5


def _each_attribute(model):
    for index, layer in enumerate(model.layers):
        layer.scale = 1 / (index + 1)


def _epsilon(model):
    model.layers[3].norm.eps = 0.1


def _forward_hook(model):
    model.layers[1].register_forward_hook(lambda module, args, result: 2 * result)


def _backward_hook(model):
    model.layers[1].register_full_backward_hook(lambda module, given, made: (3 * given[0],))


def _pre_hook(model):
    model.layers[3].up.register_forward_pre_hook(lambda module, args: (args[0] - 1,))


def _gradient_hook(model):
    model.layers[2].down.weight.register_hook(lambda gradient: gradient / 2)


def _buffer(model):
    model.layers[2].offset.fill_(0.25)


def _frozen(model):
    model.layers[0].up.weight.requires_grad_(False)


def _tied(model):
    model.layers[3].up.weight = model.layers[1].up.weight


def _patched(model):
    layer = model.layers[2]
    layer.forward = lambda x: Layer.forward(layer, x) * x


def _wider(model):
    model.layers[1].up, model.layers[1].down = nn.Linear(WIDTH, 9), nn.Linear(9, WIDTH)


def _double(model):
    layer, whole = model.layers[1], Layer.forward
    layer.double()
    layer.forward = lambda x: whole(layer, x.double()).float()


def _same_layer_twice(model):
    model.layers[3] = model.layers[1]


def _without_bias(model):
    model.layers[0].down.bias = None


def _no_grad(model):
    layer = model.layers[2]
    layer.forward = torch.no_grad()(layer.forward)


def _detached(model):
    model.layers[2].register_forward_hook(lambda module, args, result: result.detach() + args[0])


def _counted(model):
    for layer in model.layers:
        layer.calls = 0
        layer.register_forward_hook(_count)


def _count(module, args, result):
    module.calls += 1
    module.seen.append(module.calls)
    return result * module.calls


CHANGES = [
    _same, _attribute, _each_attribute, _epsilon, _forward_hook, _backward_hook, _pre_hook,
    _gradient_hook, _buffer, _frozen, _tied, _patched, _wider, _double, _same_layer_twice,
    _without_bias, _no_grad, _detached, _counted,
]  # fmt: skip


def built(change, kind=Layer):
    """A model and a batch on the CPU, with dropout off."""
    torch.manual_seed(0)
    model = Model(kind)
    if kind is Layer:
        for layer in model.layers:
            layer.dropout.eval()
        change(model)
    return model, torch.randn(4, WIDTH), torch.tensor([0, 2, 1, 1])


def made_step(model):
    """A training step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        return loss, gradients

    return step


def trained(model, x, y, jit=lambda fn: fn, steps=2):
    """The losses, the gradients and the state after some steps."""
    step = jit(made_step(model))
    found = [step(x, y) for _ in range(steps)]
    return found, {name: value.cpu() for name, value in model.state_dict().items()}


def leaves(found):
    tensors = [t for loss, gradients in found[0] for t in (loss, *gradients)]
    return [None if t is None else t.detach().cpu() for t in (*tensors, *found[1].values())]


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")  # of the layers that count
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_it_is_pytorchs_and_that_of_the_whole_program(change, monkeypatch):
    expected = leaves(trained(*built(change)))
    called = leaves(trained(*on_device(built(change)), jit=calque.jit))
    monkeypatch.setattr(programs, "called", lambda closed: closed)
    whole = leaves(trained(*on_device(built(change)), jit=calque.jit))
    for one, two, three in zip(called, whole, expected, strict=True):
        if one is None:
            assert two is three is None
            continue
        assert same_bits(one, two)
        torch.testing.assert_close(one, three, rtol=1e-4, atol=1e-5)


def same_bits(one, other):
    """Whether two tensors are equal, but for float64, where XLA adds in another order."""
    if one.dtype != torch.float64:
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=1e-14, atol=1e-15)


def on_device(given):
    return [value.to("jax") for value in given]


SCANNED = [
    _same, _each_attribute, _buffer, _patched, _same_layer_twice, _counted, _frozen, _attribute,
]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")  # of the layers that count
@pytest.mark.parametrize("change", SCANNED, ids=lambda change: change.__name__)
def test_a_loop_over_layers_is_pytorchs(change):
    jit = functools.partial(calque.jit, scan_layers=True)
    expected = leaves(trained(*built(change)))
    found = leaves(trained(*on_device(built(change)), jit=jit))
    for one, other in zip(found, expected, strict=True):
        if one is None:
            assert other is None
        else:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_loop_is_one_program_of_one_layer():
    model, x, y = on_device(built(_same))
    whole, loop = (calque.jit(made_step(model), scan_layers=s) for s in (False, True))
    count = {s: s.lower(x, y).as_text().count("stablehlo.dot_general") for s in (whole, loop)}
    assert loop.lower(x, y).as_text().count("stablehlo.while") == 2  # forward and backward
    assert count[loop] <= count[whole]


def test_a_loop_draws_what_the_layers_draw():
    def losses(**options):
        model, x, y = on_device(built(_same))
        model.train()
        torch.manual_seed(1)
        return leaves(trained(model, x, y, jit=functools.partial(calque.jit, **options)))

    for one, other in zip(losses(scan_layers=True), losses(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_loop_keeps_the_keys_and_the_storages():
    model, x, y = on_device(built(_same))
    keys, before = list(model.state_dict()), [p.data_ptr() for p in model.parameters()]
    trained(model, x, y, jit=functools.partial(calque.jit, scan_layers=True))
    assert list(model.state_dict()) == keys
    assert [p.data_ptr() for p in model.parameters()] == before


def test_gradients_outside_of_a_loop():
    model, x, _ = built(_same)
    other = copy.deepcopy(model).to("jax")
    model(x).sum().backward()
    calque.jit(other, scan_layers=True)(x.to("jax")).sum().backward()
    for one, two in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad.cpu(), two.grad, rtol=1e-4, atol=1e-5)


def test_no_equal_layers_is_an_error():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5)).to("jax")
    with pytest.raises(calque.TraceError, match="found no equal layers"):
        calque.jit(model, scan_layers=True)(torch.ones(2, 3, device="jax"))


def test_the_option_is_true_or_false():
    with pytest.raises(TypeError, match="scan_layers=\\) must be True or False"):
        calque.jit(torch.sin, scan_layers=1)


def layer_calls(step, *arguments):
    """How often the lowered program calls what it repeats."""
    text = step.lower(*arguments).as_text()
    return len(re.findall(r"call @repeated_layer", text))


def test_equal_layers_are_lowered_once():
    model, x, y = built(_same)
    step = calque.jit(made_step(model.to("jax")))
    assert layer_calls(step, x.to("jax"), y.to("jax")) >= 2 * DEPTH - 1  # forward and backward


def test_a_loop_of_other_layers_is_not():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5), nn.Sigmoid()).to("jax")
    assert layer_calls(calque.jit(model), torch.ones(2, 3, device="jax")) == 0


def test_buffers_that_are_written():
    model, x, y = built(_same, Normalized)
    expected = leaves(trained(copy.deepcopy(model), x, y))
    found = leaves(trained(model.to("jax"), x.to("jax"), y.to("jax"), jit=calque.jit))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_each_layer_draws_its_own_numbers(monkeypatch):
    def losses():
        model, x, y = built(_same)
        model.train()
        torch.manual_seed(1)
        return leaves(trained(model.to("jax"), x.to("jax"), y.to("jax"), jit=calque.jit))

    called = losses()
    monkeypatch.setattr(programs, "called", lambda closed: closed)
    for one, other in zip(called, losses(), strict=True):
        assert same_bits(one, other)


def test_what_a_layer_reads_of_python_is_guarded():
    model, x, _ = built(_same)
    other = copy.deepcopy(model).to("jax")
    forward = calque.jit(other)
    forward(x.to("jax"))
    for index in range(DEPTH):
        for one in (model, other):
            one.layers[index].scale = 2.0 + index
        torch.testing.assert_close(forward(x.to("jax")).cpu(), model(x), rtol=1e-4, atol=1e-5)
    handle = other.layers[3].register_forward_hook(lambda module, args, result: -result)
    changed = forward(x.to("jax")).cpu()
    handle.remove()
    assert not torch.allclose(changed, forward(x.to("jax")).cpu())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("make", "clip"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), True),
        (lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True, maximize=True), False),
        (
            lambda p: torch.optim.AdamW(
                [{"params": p[:3], "lr": 0.3}, {"params": p[3:], "betas": (0.5, 0.6)}]
            ),
            True,
        ),
        (lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.1), False),
        (lambda p: torch.optim.Adagrad(p, lr=0.1), False),
        (lambda p: torch.optim.NAdam(p, lr=0.1), False),
        (lambda p: torch.optim.Adamax(p, lr=0.1), False),
    ],
)
def test_updates_of_parameters_that_are_called(make, clip, monkeypatch):
    def run(device, jit, clip):
        model, x, y = built(_same)
        model, x, y = model.to(device), x.to(device), y.to(device)
        optimizer = make(list(model.parameters()))

        def step():
            F.cross_entropy(model(x), y).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()

        step = jit(step)
        for _ in range(3):
            step()
        return [p.detach().cpu() for p in model.parameters()]

    called, expected = run("jax", calque.jit, clip), run("cpu", lambda fn: fn, clip)
    monkeypatch.setattr(programs, "called", lambda closed: closed)
    whole = run("jax", calque.jit, clip)
    for one, two, three in zip(called, whole, expected, strict=True):
        assert same_bits(one, two)
        torch.testing.assert_close(one, three, rtol=1e-3, atol=1e-4)
