"""Modules moved to and from the device keep their parameters, ties, hooks and optimizers."""

import weakref

import pytest
import torch
from torch import nn

import calque


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    return model


def test_tied_weights_stay_tied_there_and_back() -> None:
    model = tied()
    weight = model[0].weight
    for device in ("jax", "cpu", "jax"):
        model.to(device)
        assert model[2].weight is model[0].weight is weight
        assert weight.device.type == device


def test_an_optimizer_made_before_the_move_trains_the_model() -> None:
    model, twin = tied(), tied()
    twin.load_state_dict(model.state_dict())
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin)]
    model.to("jax")
    for m, optimizer in zip((model, twin), optimizers, strict=True):
        m(torch.ones(2, 3, device=m[0].weight.device)).sum().backward()
        optimizer.step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach())


def test_a_move_after_a_backward_takes_the_gradients_along() -> None:
    model = tied()
    model(torch.ones(1, 3)).sum().backward()
    grad = model[0].weight.grad
    values = grad.clone()
    model.to("jax")
    assert model[0].weight.grad is grad
    assert grad.device.type == "jax"
    torch.testing.assert_close(grad.cpu(), values)
    model.to("cpu")
    torch.testing.assert_close(model[0].weight.grad, values)


def test_conversions_on_the_device_keep_the_parameters() -> None:
    model = tied().to("jax")
    weight = model[0].weight
    for convert, dtype in ((model.half, torch.half), (model.double, torch.double)):
        convert()
        assert model[2].weight is weight
        assert (weight.dtype, weight.device.type) == (dtype, "jax")
    model.to("cpu", torch.float32)
    assert (weight.dtype, weight.device.type) == (torch.float32, "cpu")


def test_attributes_hooks_and_weak_references_survive() -> None:
    layer = nn.Linear(2, 2)
    reference, called = weakref.ref(layer.weight), []
    layer.weight.tag = "mine"
    layer.weight.register_hook(lambda g: called.append("hook"))
    layer.weight.register_post_accumulate_grad_hook(lambda p: called.append("after"))
    layer.to("jax")
    layer(torch.ones(1, 2, device="jax")).sum().backward()
    assert called == ["hook", "after"]
    assert layer.weight.tag == "mine"
    assert reference() is layer.weight


def test_frozen_parameters_and_buffers_move() -> None:
    model = nn.BatchNorm1d(3)
    model.weight.requires_grad_(False)
    model.jax()
    assert not model.weight.requires_grad
    assert model.bias.requires_grad
    assert {b.device.type for b in model.buffers()} == {"jax"}


def test_recurrent_weights_move() -> None:
    model = nn.LSTM(2, 3).to("jax")
    assert {w.device.type for w in model._flat_weights} == {"jax"}
    assert model._flat_weights[0] is model.weight_ih_l0


def test_a_graph_recorded_before_the_move_refuses_to_run_backward() -> None:
    layer = nn.Linear(2, 2)
    loss = layer(torch.ones(1, 2)).sum()
    layer.to("jax")
    with pytest.raises(RuntimeError, match="moved to or from the jax device"):
        loss.backward()


def test_meta_modules_become_real() -> None:
    layer = nn.Linear(2, 2, device="meta")
    weight = layer.weight
    layer.to_empty(device="jax")
    assert layer.weight is weight
    layer.reset_parameters()
    assert weight.abs().sum().item() > 0
    skipped = nn.utils.skip_init(nn.Linear, 2, 2, device="jax")
    assert skipped.weight.device.type == "jax"


def test_modules_can_be_built_on_the_device() -> None:
    with torch.device("jax"):
        built = nn.Linear(2, 2)
    for layer in (built, nn.Linear(2, 2, device="jax")):
        assert {p.device.type for p in layer.parameters()} == {"jax"}


def test_moves_between_other_devices_are_pytorchs() -> None:
    layer = nn.Linear(2, 2)
    weight = layer.weight
    layer.to("meta")
    assert layer.weight is not weight
    assert weight.device.type == "cpu"


def lazy_model():
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))


@pytest.mark.parametrize("wrap", [lambda m: m, calque.jit])
def test_a_lazy_module_is_moved_before_it_has_shapes(wrap):
    torch.manual_seed(0)
    moved = lazy_model().to("jax")
    parameters = list(moved.parameters())
    result = wrap(moved)(torch.ones(2, 3, 5, 5, device="jax"))
    assert all(a is b for a, b in zip(parameters, moved.parameters(), strict=True))
    assert {t.device.type for t in moved.state_dict().values()} == {"jax"}
    assert moved[3].weight.shape == (2, 36)
    copy = lazy_model()
    copy(torch.ones(2, 3, 5, 5))
    copy.load_state_dict({k: v.cpu() for k, v in moved.state_dict().items()})
    moved.eval(), copy.eval()
    x = torch.rand(2, 3, 5, 5)
    torch.testing.assert_close(moved(x.to("jax")).cpu(), copy(x))
    assert result.shape == (2, 2)


def test_a_lazy_module_changes_its_dtype_and_comes_back():
    layer = nn.LazyLinear(3).to("jax", torch.bfloat16)
    assert (layer.weight.dtype, layer.weight.device.type) == (torch.bfloat16, "jax")
    layer.cpu().double()
    assert layer(torch.ones(2, 5).double()).dtype == torch.float64
    assert layer.weight.device.type == "cpu"
    assert type(layer) is nn.Linear


def test_a_lazy_module_on_the_device_changes_its_dtype():
    layer = nn.LazyLinear(3, device="jax").double()
    assert (layer.weight.dtype, layer.weight.device.type) == (torch.float64, "jax")
    assert layer.half()(torch.ones(2, 5, device="jax").half()).dtype == torch.float16


def test_the_state_of_a_lazy_module_is_loaded_before_it_has_shapes():
    layer, other = nn.LazyLinear(3, device="jax"), nn.LazyLinear(3, device="jax")
    layer.load_state_dict(other.state_dict())
    assert layer.has_uninitialized_params()
    layer(torch.ones(2, 5, device="jax"))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight, layer.weight)


def test_an_optimizer_made_before_a_lazy_module_moves_updates_it():
    layer = nn.LazyLinear(1)
    sgd = torch.optim.SGD(layer.parameters(), lr=0.5)
    layer.to("jax")
    x = torch.ones(2, 3, device="jax")
    with torch.no_grad():
        layer(x)
    before = layer.weight.detach().clone()
    layer(x).sum().backward()
    sgd.step()
    torch.testing.assert_close(layer.weight.detach(), before - 1.0)


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_modules_of_torchscript_move_with_their_ties_and_their_optimizer() -> None:
    plain = tied()
    model = nn.Sequential(torch.jit.script(plain), nn.Tanh())
    twin = nn.Sequential(tied(), nn.Tanh())
    twin[0].load_state_dict(plain.state_dict())
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin)]
    model.to("jax")
    assert {value.device.type for value in model.state_dict().values()} == {"jax"}
    for m, optimizer, device in zip((model, twin), optimizers, ("jax", "cpu"), strict=True):
        m(torch.ones(2, 3, device=device)).sum().backward()
        optimizer.step()
    assert len(list(model.parameters())) == len(list(twin.parameters()))
    model.to("cpu")
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)
