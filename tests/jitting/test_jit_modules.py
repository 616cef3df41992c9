"""A jitted module is a module, as what `torch.compile` makes of one is."""

import copy
import io

import jax
import pytest
import torch
from torch import nn

import calque


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(()))
        self.scale = 1.0

    def forward(self, x):
        with torch.no_grad():
            self.seen += 1
        return self.drop(self.linear(x)) * self.scale

    def named(self):
        return "net"


class Scaled:
    factor = 3.0

    @calque.jit
    def by_factor(self, x):
        return x * self.factor


def ones(*shape):
    return torch.ones(*shape, device="jax")


def made(seed=0):
    torch.manual_seed(seed)
    return Net().to("jax")


def test_its_names_are_those_of_a_compiled_module():
    model = made()
    compiled, jitted = torch.compile(model, backend="eager"), calque.jit(model)
    assert isinstance(jitted, nn.Module)
    for names in ("named_parameters", "named_buffers", "named_modules", "named_children"):
        assert [n for n, _ in getattr(jitted, names)()] == [
            n for n, _ in getattr(compiled, names)()
        ]
    assert list(jitted.state_dict()) == list(compiled.state_dict())


def test_a_checkpoint_of_its_parent_has_its_parameters():
    parent = nn.Sequential(calque.jit(made()), nn.Linear(2, 1).to("jax"))
    saved = io.BytesIO()
    torch.save(parent.state_dict(), saved)
    weight = parent[0].linear.weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight.zero_()
    saved.seek(0)
    parent.load_state_dict(torch.load(saved))
    assert torch.equal(weight, before)


def test_it_loads_what_the_module_itself_saved():
    model, other = made(), made(1)
    for jitted, saved in (
        (calque.jit(model), other.state_dict()),
        (nn.Sequential(calque.jit(model)), nn.Sequential(other).state_dict()),
        (calque.jit(model), calque.jit(other).state_dict()),
    ):
        model.linear.reset_parameters()
        assert str(jitted.load_state_dict(saved)) == "<All keys matched successfully>"
        assert torch.equal(model.linear.weight, other.linear.weight)
    with pytest.raises(RuntimeError, match="Missing key"):
        calque.jit(model).load_state_dict({"linear.weight": other.linear.weight})


def test_its_parent_trains_it_and_sets_its_mode():
    def train(device, jit):
        torch.manual_seed(0)
        first, last = nn.Linear(2, 4).to(device), nn.Linear(4, 1).to(device)
        model = nn.Sequential(jit(first), nn.Tanh(), last)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(3, 2, device=device)).pow(2).mean().backward()
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    for got, want in zip(train("jax", calque.jit), train("cpu", lambda m: m), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    model = made()
    parent = nn.Sequential(calque.jit(model))
    parent.eval()
    assert not parent[0].training
    assert not model.drop.training
    parent[0].training = True
    assert model.training
    assert not model.drop.training


def test_attributes_are_those_of_the_module():
    model = made()
    jitted = calque.jit(model.eval())
    assert jitted.named() == "net"
    once = jitted(ones(1, 2))
    jitted.scale = 3.0
    assert model.scale == 3.0
    torch.testing.assert_close(jitted(ones(1, 2)), once * 3)
    del jitted.scale
    assert not hasattr(model, "scale")
    assert not hasattr(jitted, "scale")
    jitted.extra = nn.Linear(1, 1)
    jitted.register_buffer("more", ones(1))
    assert "extra" in model._modules
    assert jitted.more is model.more
    assert "named" in dir(jitted)


def test_reports_of_it():
    jitted = calque.jit(made())
    jitted(ones(1, 2))
    assert jitted.history == ["first call"]
    assert jitted.compilations == 1
    assert len(jitted.programs) == 1
    assert str(jitted.explain()).startswith("Net: 1 traces, 1 compilations")
    assert "stablehlo" in jitted.lower(ones(1, 2)).as_text()
    assert "Linear" in repr(jitted)


def test_hooks_on_it_run_around_the_program():
    def run(model, x):
        seen = []
        model.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
        model.register_forward_hook(lambda m, args, out: seen.append("forward") or out * 2)
        model.register_full_backward_hook(lambda m, into, out: seen.append("backward"))
        x.requires_grad_()
        out = model(x)
        out.sum().backward()
        return seen, out.detach().cpu(), x.grad.cpu()

    model = made().eval()
    reference = copy.deepcopy(model).cpu()
    seen, out, gradient = run(calque.jit(model), ones(1, 2))
    want = run(reference, torch.ones(1, 2))
    assert seen == want[0]
    torch.testing.assert_close((out, gradient), want[1:])


def test_hooks_on_all_modules_run_once_a_module():
    seen = []
    jitted = calque.jit(nn.Linear(2, 2).to("jax"))
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, out: seen.append(type(module))
    )
    try:
        jitted(ones(1, 2))
    finally:
        handle.remove()
    assert seen == [nn.Linear]


def test_copies_and_pickles_of_it():
    parent = nn.Sequential(calque.jit(made().eval()))
    out = parent(ones(1, 2))
    copied = copy.deepcopy(parent)
    assert copied[0].linear.weight is not parent[0].linear.weight
    saved = io.BytesIO()
    torch.save(parent, saved)
    saved.seek(0)
    for other in (copied, torch.load(saved, weights_only=False)):
        assert type(other[0]) is type(parent[0])
        assert torch.equal(other(ones(1, 2)), out)
        assert list(other.state_dict()) == list(parent.state_dict())
    with torch.no_grad():
        copied[0].linear.weight.zero_()
    assert torch.equal(parent(ones(1, 2)), out)


def test_moves_and_casts_of_it():
    model = nn.Linear(2, 2)
    jitted = calque.jit(model)
    assert jitted.to("jax") is jitted
    assert jitted(ones(1, 2)).dtype == torch.float32
    jitted.double().requires_grad_(False)
    out = jitted(ones(1, 2).double())
    assert out.dtype == torch.float64
    assert not out.requires_grad


def test_inside_of_another_jitted_function():
    layer = calque.jit(nn.Linear(2, 2).to("jax"))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    @calque.jit
    def step(x):
        loss = layer(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    losses = [step(ones(1, 2)).item() for _ in range(3)]
    assert losses[2] < losses[1] < losses[0]
    assert len(step.history) == 1
    assert not layer.history


def test_every_other_tracer_sees_the_module():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh()).to("jax")
    jitted, x = calque.jit(model), ones(1, 2)
    want = model(x)
    parent = nn.Sequential(jitted)
    torch.testing.assert_close(calque.trace(jitted, x)(x), want)
    torch.testing.assert_close(calque.trace(parent, x)(x), want)
    torch.testing.assert_close(torch.compile(parent, backend="calque")(x), want)
    torch.testing.assert_close(torch.func.functional_call(jitted, jitted.state_dict(), (x,)), want)
    apply, params = calque.functional(jitted)
    out = jax.jit(apply)(params, calque.to_jax(x))
    torch.testing.assert_close(calque.to_torch(out), want.cpu(), check_device=False)


def test_containers_of_modules():
    jitted = calque.jit(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).to("jax"))
    assert len(jitted) == 2
    assert isinstance(jitted[1], nn.ReLU)
    assert [type(layer) for layer in jitted] == [nn.Linear, nn.ReLU]
    assert calque.jit(nn.Linear(2, 2))
    with pytest.raises(TypeError):
        len(calque.jit(nn.Linear(2, 2)))


def test_a_class_of_modules_is_jitted_in_its_forward():
    @calque.jit(specialize=False)
    class Twice(nn.Module):
        def forward(self, x):
            return x * 2

    one = Twice()
    assert isinstance(one, Twice)
    assert one(ones(2)).tolist() == [2, 2]
    assert one.forward.history == ["first call"]


def test_a_lazy_module_finds_its_shapes():
    jitted = calque.jit(nn.LazyLinear(3, device="jax"))
    assert jitted(ones(1, 2)).shape == (1, 3)
    assert jitted.weight.shape == (3, 2)


def test_a_module_that_is_made_in_the_function_is_traced_once():
    on_cpu, on_device = nn.Linear(3, 2), nn.Linear(3, 2).to("jax")

    def copied(x):
        return copy.deepcopy(on_device)(x)

    def moved(x):
        return copy.deepcopy(on_cpu).to("jax")(x)

    def trained(x):
        model = copy.deepcopy(on_device)
        model(x).sum().backward()
        return model.weight.grad

    for fn in (copied, moved, trained):
        run = calque.jit(fn)
        for i in range(3):
            x = torch.full((4, 3), float(i), device="jax")
            torch.testing.assert_close(run(x), fn(x))
        assert run.history == ["first call"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: calque.jit(made().eval()),
        lambda: calque.jit(lambda x: x * 2 + 1),
        lambda: Scaled().by_factor,
    ],
)
def test_dynamo_captures_it_as_a_part_of_a_graph(make):
    jitted = make()
    x = ones(3, 2)
    want = jitted(x) - jitted(2 * x)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: jitted(x) - jitted(2 * x), backend="calque", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), want)
